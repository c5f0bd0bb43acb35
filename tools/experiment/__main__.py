"""Run an experiment of ``tools/experiments``, or of a YAML file, and write the page of its results.

    python -m tools.experiment --list                        all of them, and what is stored
    python -m tools.experiment table6                        two CPU cores, minutes
    python -m tools.experiment my.yaml --seeds 0 1 2 --jobs 2 -- --max_steps 500
    python -m tools.experiment table6 --scale paper --plan   its commands; nothing is run
    python -m tools.experiment table6 --scale paper --launcher "deepspeed --hostfile hosts"
    python -m tools.experiment --page                        docs/results/README.md, from the stored results

Every arm is trained with every seed in its own folder in ``--output``, then scored by the commands of the file. Words
after ``--`` go to every run. A complete run is not repeated, an interrupted one resumes from its last checkpoint, so
the same command can be started again. After every run the page (md, csv, json) is written to ``--output``, or to
``--results``. Format of the file, and how arms are compared: docs/comparing.md.

Exit codes: 0 done; 1 a command failed (the others are done, and its log is named); 2 bad input.
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from tape_ds import storage
from tape_ds.arguments import Parser, below_one
from tape_ds.errors import Problem, UserError, check_folder, command, did_you_mean, raise_if_any
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table
from tools.experiment import pages, runs, table
from tools.experiment.runs import ExperimentWork, PlannedRun
from tools.experiment.table import PAPER, SCALES, SMALL, Experiment

NAME = "tools.experiment"


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, print the plan, run it, write the page after every run."""
    typed = sys.argv[1:] if argv is None else argv
    at = typed.index("--") if "--" in typed else len(typed)
    parser = Parser(prog=f"python -m {NAME}", description=__doc__)
    parser.add_argument(
        "experiment", nargs="?", metavar="EXPERIMENT", help="a name, see --list, or a .yaml file"
    )
    parser.add_argument("--list", action="store_true", help="all experiments; nothing is run")
    parser.add_argument(
        "--page", action="store_true", help="write docs/results/README.md from what is stored"
    )
    parser.add_argument("--scale", default=SMALL, choices=SCALES, help="default: %(default)s")
    parser.add_argument("--plan", action="store_true", help="print the plan and run nothing")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="only these of the file")
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="train every arm with each"
    )
    parser.add_argument("--reference", metavar="ARM", help="what the others are compared with")
    parser.add_argument("--primary", metavar="FIGURE", help="what decides (a wrong name lists all)")
    parser.add_argument("--output", help="folder of the runs")
    parser.add_argument("--results", help="folder of the page; default: --output")
    parser.add_argument(
        "--processes",
        type=int,
        help="of each run; default: every GPU, or 2 on a CPU, over the jobs",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="runs at a time, which share the GPUs (default: %(default)s)",
    )
    parser.add_argument(
        "--launcher", default="", help="what starts processes, such as a deepspeed with --hostfile"
    )
    options = parser.parse_args(typed[:at])

    if options.page:
        storage.write_text(ROOT / pages.OVERVIEW, pages.overview())
        print(f"written: {pages.OVERVIEW}", flush=True)
    if options.list:
        rows = []
        for name in table.shipped():
            found = table.read(name)
            stored = ""
            if found.label:
                stored = "yes" if pages.stored(name) else pages.NOT_MEASURED
            minutes = "" if found.minutes is None else f"{found.minutes:g}"
            rows.append((name, found.about, minutes, stored))
        print(markdown_table(["name", "what", "minutes of two cores", "stored"], rows, "l"))
    if options.experiment is None:
        if not options.page and not options.list:
            raise UserError(
                Problem("experiment", None, "missing", "name one, or ask for the --list")
            )
        return 0

    work = check(options)
    planned = runs.plan(work.experiment, typed[at + 1 :], work.output, work.starting.processes)
    print(outline(work, planned), flush=True)
    if options.plan:
        return 0

    def write() -> str:
        return pages.write(
            work, planned, Path(options.results or work.output), ["python", "-m", NAME, *typed]
        )

    failed = {}
    log = work.run_steps("before", work.commands(work.experiment.before), work.own, "")
    complete = {run.label for run in planned if work.scored(run) is not None}
    for run, log_of_run in work.run_all(planned if log is None else []):
        if log_of_run is not None:
            failed[run.label] = log_of_run
        elif run.label not in complete:
            write()
    if log is None and not failed:
        log = work.run_steps(
            "then", work.commands(work.experiment.then), work.own, work.all_scored(planned) or ""
        )
    failed |= {"a command": log} if log is not None else {}
    print(write(), flush=True)
    for label, log_of_run in failed.items():
        print(f"FAILED: {label}, see {log_of_run}", file=sys.stderr, flush=True)
    if failed:
        return 1
    return 0


def check(options: argparse.Namespace) -> ExperimentWork:
    """Return the experiment with the changes of the command line."""
    found = table.read(options.experiment, options.scale)
    chosen = options.arms or list(found.arms)
    unknown = [arm for arm in chosen if arm not in found.arms]
    problems = [
        Problem("arms", arm, "no such arm", did_you_mean(arm, found.arms)) for arm in unknown
    ]
    given = {name: getattr(options, name) for name in ("seeds", "reference", "primary")}
    given |= {"arms": {arm: found.arms[arm] for arm in chosen if arm in found.arms}}
    own = {name: getattr(found, name) for name in Experiment.model_fields}
    found = Experiment.build(
        own | {name: value for name, value in given.items() if value is not None}
    )
    problems += below_one(options, "jobs", "processes")
    for name in ("output", "results"):
        problems += check_folder(name, getattr(options, name) or ".")
    try:
        words = shlex.split(options.launcher)
        if words and words[0] not in ("deepspeed", "python") and shutil.which(words[0]) is None:
            problems.append(
                Problem(
                    "launcher", options.launcher, f"there is no program {words[0]}", "install it"
                )
            )
    except ValueError as error:
        problems.append(
            Problem(
                "launcher", options.launcher, f"cannot be read ({error})", "write it as in a shell"
            )
        )
    raise_if_any([*problems, *table.check(found)])

    stem = Path(options.experiment).stem
    paper = options.scale == PAPER
    output = Path(options.output or found.output or f"runs/{stem}{'_paper' if paper else ''}")
    many = 8 if paper else max(1, (torch.cuda.device_count() or 2) // options.jobs)
    starting = runs.Starting(options.processes or found.processes or many, options.launcher)
    name = f"{stem}_{options.scale}" if found.label else stem
    raise_if_any(pages.check_page(Path(options.results or output), name))
    return ExperimentWork(name, found, output, starting, options.jobs)


def outline(work: ExperimentWork, planned: Sequence[PlannedRun]) -> str:
    """Return the plan as text."""
    found = work.experiment
    lines = [f"{found.label}: {found.about}" if found.label else found.about]
    lines += [f"  ours: {found.setting}"] if found.setting else []
    lines += [f"  {remark}" for remark in found.remarks] + (
        [f"  needs {found.needs}"] if found.needs else []
    )
    commands: list[tuple[str, Sequence[str]]] = [
        ("  ", words) for words in work.commands(found.before)
    ]
    for run in planned:
        title = f"- {run.label}{', done' if work.scored(run) is not None else ''}\n    "
        commands += [
            (title, work.training(run)),
            *(("    ", words) for words in work.commands(found.score, run)),
        ]
    commands += [("  ", words) for words in work.commands(found.then)]
    lines += [indent + shlex.join(work.starting.typed(words)) for indent, words in commands]
    lines += [f"about {found.minutes:g} min on two cores"] if found.minutes is not None else []
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
