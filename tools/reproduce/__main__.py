"""Every table and figure of the papers as one command: what it takes, running it, ours beside the published numbers.

    python -m tools.reproduce --list                       all of them, with what they cost and what is stored
    python -m tools.reproduce table6                       two CPU cores, minutes, no network
    python -m tools.reproduce table6 --scale small         two CPU cores, an hour or so: numbers that tell
    python -m tools.reproduce table6 --scale paper --plan --gpu h100-80 --gpus 64 --price 2.5
    python -m tools.reproduce table6 --scale paper --launcher "deepspeed --hostfile hosts"
    python -m tools.reproduce --page                       docs/results/README.md, again, from what is stored

A table's plan is printed first: each command as it could be typed, with its cost. Then they run one after another, from
the repository's top; what each prints goes to a log. One whose result is there and was made by the same command is not
repeated, one that was cut short goes on, so the same command can be started again. At the end ours stands beside the
published numbers in ``TABLE_SCALE.md`` and ``.json``, in ``--output`` or ``--results`` (the page shows what lies in
``docs/results/reproduce``). Runs that several experiments need are kept in the folder ``shared`` beside ``--output``.

Hours and costs are the planner's predictions, of training runs alone; minutes were measured on two cores.

Exit codes: 0 done; 1 a command failed (it is named, with its log); 2 something to mend, nothing was started.
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tape_ds import results, storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, check_folder, command, raise_if_any
from tape_ds.planning import hardware
from tape_ds.training.comparison import runs
from tools.reproduce import estimate, page, registry, render, running
from tools.reproduce.estimate import Cluster
from tools.reproduce.experiment import PAPER, ROOT, SCALES, TINY, WORK, Experiment, Form, Place

NAME = "reproduce"


@command
def main(argv: list[str] | None = None) -> int:
    """Check, print the plan, run it, write ours beside the published numbers."""
    given = sys.argv[1:] if argv is None else argv
    options = parse(given)
    experiment = check(options)
    cluster = Cluster(options.gpu, options.gpus, options.price)
    if options.page:
        storage.write_text(ROOT / page.PAGE, page.build())
        print(f"written: {page.PAGE}", flush=True)
    if options.list:
        print(listing(cluster))
    if experiment is None:
        return 0
    form, place = experiment.forms[options.scale], place_of(options, experiment)
    print(plan(experiment, form, place, cluster), flush=True)
    return 0 if options.plan else carry_out(experiment, options, place, given)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog=f"python -m tools.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("table", nargs="?", metavar="TABLE", help="figure2 ... table10, see --list")
    parser.add_argument("--list", action="store_true", help="all tables and figures; nothing is run")
    parser.add_argument("--page", action="store_true", help=f"write {page.PAGE} from what is stored")
    parser.add_argument("--scale", default=TINY, choices=SCALES, help="default: %(default)s")
    parser.add_argument("--plan", action="store_true", help="print the plan and run nothing")
    parser.add_argument("--output", help=f"folder of the runs; default: runs/{NAME}/SCALE/TABLE")
    parser.add_argument("--results", help="folder of the table; default: --output")
    parser.add_argument("--processes", type=int, help="of each run that needs no cluster; default: 2 on a CPU, or GPUs")
    parser.add_argument("--launcher", default="deepspeed", help="of paper-scale commands (default: %(default)s)")
    group = parser.add_argument_group("what paper scale is planned for")
    group.add_argument("--gpu", default=Cluster.gpu, help=f"one of: {', '.join(hardware.GPUS)}; default %(default)s")
    group.add_argument("--gpus", type=int, default=Cluster.gpus, help="how many; default %(default)s")
    group.add_argument("--price", type=float, help="of one GPU for an hour, in any currency")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> Experiment | None:
    """The experiment that is asked for, if one is.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = runs.check_processes(options.processes)
    experiment = None
    if options.table is not None:
        try:
            experiment = registry.find(options.table)
        except UserError as error:
            problems += error.problems
    elif not options.list and not options.page:
        problems.append(Problem("table", None, "missing", "name one, or ask for the --list"))
    if options.page and WORK != ROOT:
        problems.append(Problem("page", True, "the page is a checkout's, and there is none", "run it in a checkout"))
    if experiment is not None and options.scale not in experiment.forms:
        wrong = f"{experiment.name} has no such form"
        problems.append(Problem("scale", options.scale, wrong, f"one of: {', '.join(experiment.forms)}"))
    try:
        hardware.find(options.gpu)
    except UserError as error:
        problems += error.problems
    if options.gpus < 1:
        problems.append(Problem("gpus", options.gpus, "too few", "give 1 or more"))
    if options.price is not None and not 0 <= options.price < float("inf"):
        problems.append(Problem("price", options.price, "not a price", "give 0 or more"))
    problems += check_launcher(options.launcher)
    for name in ("output", "results"):
        problems += check_folder(name, getattr(options, name) or ".")
    raise_if_any(problems)
    return experiment


def check_launcher(launcher: str) -> list[Problem]:
    """Whether it can be split into words, of which the first is a program that there is."""
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        return [Problem("launcher", launcher, f"cannot be read ({error})", "write it as in a shell")]
    remedy = 'give for example "deepspeed --hostfile hosts"'
    if not words:
        return [Problem("launcher", launcher, "empty", remedy)]
    known = words[0] in ("deepspeed", "python") or shutil.which(words[0])
    return [] if known else [Problem("launcher", launcher, f"there is no program {words[0]}", remedy)]


def place_of(options: argparse.Namespace, experiment: Experiment) -> Place:
    """Where everything is written: as a path that the commands understand, wherever they run."""
    output = Path(options.output or WORK / "runs" / NAME / options.scale / experiment.name).absolute()
    shown = Path(os.path.relpath(output, WORK)) if output.is_relative_to(WORK) else output
    return Place(shown, options.processes or runs.default_processes(), options.launcher)


def plan(experiment: Experiment, form: Form, place: Place, cluster: Cluster) -> str:
    """What will be run, and what it takes."""
    lines = [f"{experiment.label}: {experiment.title}", f"  ours: {form.setting}"]
    lines += [f"  {remark}" for remark in form.remarks]
    lines += [f"  needs {form.needs}"] if form.needs else []
    lines.append(f"{len(form.steps)} commands:" if form.steps else "nothing is run: ours is read from the repository")
    for number, step in enumerate(form.steps, 1):
        done = ", done already" if running.is_done(step, place, form.steps[: number - 1]) else ""
        minutes = "" if step.minutes is None else f"about {step.minutes:g} min on two cores"
        cost = minutes or estimate.told(estimate.of_step(step, place, cluster), cluster)
        lines.append(f"  {number}. {step.name}{f' ({cost}{done})' if cost or done else ''}")
        lines.append(f"     {shlex.join(step.command(place))}")
    lines += [f"in all: {total(form, place, cluster)}"] if form.steps else []
    return "\n".join(lines)


def total(form: Form, place: Place, cluster: Cluster) -> str:
    """Of all commands together."""
    if form.minutes is not None:
        return f"about {form.minutes:g} min on two cores"
    cost = estimate.of_form(form, place, cluster)
    if cost is None:
        return "nobody can say: not every run is predicted"
    return f"{estimate.told(cost, cluster)}, and the commands without a figure"


def listing(cluster: Cluster) -> str:
    """A line for each experiment."""
    header = ("name", "what", "tiny", "small", "paper", "stored")
    rows = [header]
    for name, experiment in registry.EXPERIMENTS.items():
        place = Place(Path("runs") / NAME / PAPER / name)
        minutes = {scale: form.minutes for scale, form in experiment.forms.items()}
        paper = experiment.forms[PAPER]
        cost = estimate.of_form(paper, place, cluster)
        hours = f"{cost.gpu_hours:,.0f} GPU h" if cost else "no training" if paper.minutes is None else "minutes"
        told = {scale: "-" if value is None else f"{value:.0f} min" for scale, value in minutes.items()}
        stored = "yes" if page.is_stored(experiment) else "not measured"
        rows.append((name, experiment.title, told.get(TINY, "-"), told.get("small", "-"), hours, stored))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    said = f"Minutes of two CPU cores; hours of {cluster.gpu}, predicted, of training alone."
    return "\n".join([*lines, "", said])


def carry_out(experiment: Experiment, options: argparse.Namespace, place: Place, given: Sequence[str]) -> int:
    """Run the steps and write what came of them."""
    form = experiment.forms[options.scale]
    begun = results.collect(
        command=["python", "-m", f"tools.{NAME}", *given],
        config={"experiment": experiment.name, "scale": options.scale, "setting": form.setting},
        processes=place.processes,
    )
    failed = running.carry_out(form.steps, place)
    if failed is not None:
        log = running.log_of(failed, place)
        print(f"FAILED: {failed.name}, see {log}", file=sys.stderr, flush=True)
        return 1
    ours = form.measured(place)
    folder = Path(options.results).absolute() if options.results else WORK / place.output
    write(experiment, options.scale, begun, ours, place, folder)
    return 0


def write(
    experiment: Experiment, scale: str, begun: results.Result, ours: render.Measured, place: Place, folder: Path
) -> None:
    """``TABLE_SCALE.json`` and ``.md``, and pictures beside them, where ours is one."""
    form, stem = experiment.forms[scale], f"{experiment.name}_{scale}"
    kept = render.Measured(ours.values, ours.sources, tuple(_copied(file, folder, stem) for file in ours.files))
    heading = f"# {experiment.label}: {experiment.title}"
    text = f"{heading}\n\n{render.markdown(experiment, form.setting, kept, form.remarks, folder)}"
    results.save(render.as_result(begun, experiment, scale, form, kept, place), folder / f"{stem}.json")
    storage.write_text(folder / f"{stem}.md", text)
    print(f"{text}\nwritten to {render.shown(folder / stem)}.md, .json", flush=True)


def _copied(file: Path, folder: Path, stem: str) -> Path:
    """A picture or page of ours, under the experiment's name beside its table."""
    target = folder / f"{stem}_{file.name}"
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_file(target, lambda part: shutil.copyfile(file, part))
    return target


if __name__ == "__main__":
    sys.exit(main())
