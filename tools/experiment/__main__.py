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
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    # words after -- are the launchers'
    at = [*typed, "--"].index("--")
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
        print(listing())
    if options.experiment is None:
        if not options.page and not options.list:
            remedy = "name one, or ask for the --list"
            raise UserError(Problem("experiment", None, "missing", remedy))
        return 0

    work = settle_experiment(options)
    planned = runs.plan(work.experiment, typed[at + 1 :], work.output, work.starting.processes)
    print(outline(work, planned), flush=True)
    if options.plan:
        return 0

    def write_page() -> str:
        return pages.write(
            work, planned, Path(options.results or work.output), ["python", "-m", NAME, *typed]
        )

    failed = {}
    log = work.run_steps("before", work.commands(work.experiment.before), work.own, "")
    complete = {run.label for run in planned if work.scored(run) is not None}
    # runs need what the first commands make
    for run, log_of_run in work.run_all(planned if log is None else []):
        if log_of_run is not None:
            failed[run.label] = log_of_run
        elif run.label not in complete:
            write_page()
    if log is None and not failed:
        commands = work.commands(work.experiment.then)
        log = work.run_steps("then", commands, work.own, work.all_scored(planned) or "")
    if log is not None:
        failed["a command"] = log
    print(write_page(), flush=True)
    for label, log_of_run in failed.items():
        print(f"FAILED: {label}, see {log_of_run}", file=sys.stderr, flush=True)
    return int(bool(failed))


def listing() -> str:
    rows = []
    for name in table.shipped():
        asked = table.read(name)
        stored = ""
        if asked.label:
            stored = "yes" if pages.stored(name) else pages.NOT_MEASURED
        minutes = "" if asked.minutes is None else f"{asked.minutes:g}"
        rows.append((name, asked.about, minutes, stored))
    return markdown_table(["name", "what", "minutes of two cores", "stored"], rows, "l")


def settle_experiment(options: argparse.Namespace) -> ExperimentWork:
    """Return the experiment with the changes of the command line."""
    asked = table.read(options.experiment, options.scale)
    problems = []
    arms = {}
    for arm in options.arms or asked.arms:
        if arm in asked.arms:
            arms[arm] = asked.arms[arm]
        else:
            problems.append(Problem("--arms", arm, "no such arm", did_you_mean(arm, asked.arms)))
    changes = {}
    for name in ("seeds", "reference", "primary"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    asked = Experiment.build(dict(asked) | {"arms": arms} | changes)
    problems += below_one(options, "jobs", "processes")
    for name in ("output", "results"):
        problems += check_folder(f"--{name}", getattr(options, name) or ".")
    problems += _check_launcher(options.launcher)
    for problem in table.check_experiment(asked):
        # any other is a field of the file
        if problem.field in changes:
            problem = replace(problem, field=f"--{problem.field}")
        problems.append(problem)
    raise_if_any(problems)

    stem = Path(options.experiment).stem
    name = f"{stem}_{options.scale}" if asked.label else stem
    output = f"runs/{stem}"
    # of each run: every GPU that the jobs leave it, two cores without one, a machine of eight for the paper's
    processes = max(1, (torch.cuda.device_count() or 2) // options.jobs)
    if options.scale == PAPER:
        output += "_paper"
        processes = 8
    folder = Path(options.output or asked.output or output)
    raise_if_any(pages.check_page(Path(options.results or folder), name))
    starting = runs.Starting(options.processes or asked.processes or processes, options.launcher)
    return ExperimentWork(name, asked, folder, starting, options.jobs)


def _check_launcher(launcher: str) -> list[Problem]:
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        reason = f"cannot be read ({error})"
        return [Problem("--launcher", launcher, reason, "write it as in a shell")]
    if words and words[0] not in ("deepspeed", "python") and shutil.which(words[0]) is None:
        return [Problem("--launcher", launcher, f"there is no program {words[0]}", "install it")]
    return []


def outline(work: ExperimentWork, planned: Sequence[PlannedRun]) -> str:
    """Return the plan as text."""
    asked = work.experiment
    lines = [f"{asked.label}: {asked.about}" if asked.label else asked.about]
    if asked.setting:
        lines.append(f"  ours: {asked.setting}")
    lines += map("  {}".format, asked.remarks)
    if asked.needs:
        lines.append(f"  needs {asked.needs}")

    def add(indent: str, commands: Iterable[Sequence[str]]) -> None:
        for words in commands:
            lines.append(indent + shlex.join(work.starting.typed(words)))

    add("  ", work.commands(asked.before))
    for run in planned:
        done = ", done" if work.scored(run) is not None else ""
        add(f"- {run.label}{done}\n    ", [work.training(run)])
        add("    ", work.commands(asked.score, run))
    add("  ", work.commands(asked.then))
    if asked.minutes is not None:
        lines.append(f"about {asked.minutes:g} min on two cores")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
