"""Comparisons of positional encodings: the options of their commands, and one run of a launcher for each encoding.

Runs have the same seed, rows and initial weights outside the encoding; whatever stands behind ``--`` goes to all.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tape_ds.errors import Problem, raise_if_any
from tape_ds.model import positions
from tape_ds.training.comparison import entries, runs
from tape_ds.training.comparison.entries import Entry
from tape_ds.training.recipe.recipe import Recipe

OWN = ("recipe", "position_encoding", "position_options", "output_dir", "resume_from_checkpoint", "rope_parameters")
"""Fields that the command decides for each run."""


def add_options(
    parser: argparse.ArgumentParser, *, name: str, chosen: Sequence[str], recipe: str, launcher: str
) -> None:
    """What every such command takes before ``--``; ``chosen`` and ``recipe`` are the defaults."""
    parser.add_argument("--encodings", nargs="+", default=list(chosen), help='NAME or NAME{"option": value}')
    parser.add_argument("--recipe", default=recipe, help=f"a recipe of {launcher} (default: {recipe})")
    parser.add_argument("--output", default=f"runs/{name}", help="folder of the runs")
    parser.add_argument("--results", help="folder of the table and the plot; default: --output")
    parser.add_argument("--processes", type=int, help="processes of each run; default: 2 on a CPU, else every GPU")


def plan(
    options: argparse.Namespace,
    passed_on: list[str],
    launcher: Path,
    load: Callable[[list[str], int], Recipe],
    problems: Sequence[Problem] = (),
) -> list[runs.Planned]:
    """The runs, once every one's recipe has been checked as the launcher would.

    Args:
        options: of :func:`add_options`.
        passed_on: what stands behind ``--``.
        launcher: carries the runs out.
        load: its recipe from a command line and the number of processes.
        problems: what else is wrong with the command line.

    Raises:
        UserError: everything wrong with any of them.
    """
    chosen, wrong = entries.read_all(options.encodings, "encodings", read_entry)
    wrong += [*problems, *entries.check_passed_on(passed_on, OWN), *runs.check_processes(options.processes)]
    raise_if_any(wrong)
    count = options.processes or runs.default_processes()
    return runs.plan_all(
        {entry.label: arguments(entry, options, passed_on) for entry in chosen}, launcher, lambda own: load(own, count)
    )


def read_entry(text: str) -> Entry:
    """``NAME`` or ``NAME{"option": value}``.

    Raises:
        UserError: no such encoding or option.
    """
    entry = entries.read(text, "encodings")
    raise_if_any(positions.check_options(entry.name, entry.options))
    return entry


def arguments(entry: Entry, options: argparse.Namespace, passed_on: Sequence[str]) -> list[str]:
    """The launcher's command line for one entry."""
    chosen = ["--recipe", options.recipe, "--position_encoding", entry.name]
    chosen += ["--position_options", json.dumps(entry.options)]
    return [*chosen, *passed_on, "--output_dir", str(Path(options.output) / entry.folder)]


def exit_code(failed: Mapping[str, Path]) -> int:
    """0, or 1 once each run that failed has been named with its log."""
    for label, log in failed.items():
        print(f"FAILED: {label}, see {log}", file=sys.stderr, flush=True)
    return 1 if failed else 0
