"""Command lines of comparisons: what stands before ``--``, and the runs that follow, checked before one starts."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tape_ds import fields
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.recipe.recipe import Recipe
from tape_ds.recipe.trainer import Trainer
from tape_ds.scoring.statistics import MOST_FLIPPED
from tape_ds.training.comparison import arms, runs
from tape_ds.training.comparison.arms import Arm
from tape_ds.training.comparison.measures import Measure


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of the comparing command, and those behind ``--`` for every run."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def parser(description: str | None, *, name: str, flag: str, recipe: str, recipe_help: str) -> argparse.ArgumentParser:
    """What every comparison takes; ``--flag`` names its arms."""
    made = Parser(description=description)
    made.add_argument(f"--{flag}", nargs="+", help='NAME or NAME{"option": value}')
    made.add_argument("--arms", metavar="FILE", help="YAML: for each arm, NAME: {field of the recipe: value, ...}")
    made.add_argument("--recipe", default=recipe, help=f"{recipe_help} (default: {recipe})")
    made.add_argument("--output", default=f"runs/{name}", help="folder of the runs")
    made.add_argument("--results", help="folder of the table and the plot; default: --output")
    made.add_argument("--seeds", type=int, nargs="+", metavar="N", help="train every arm with each; default: recipe's")
    made.add_argument("--repeat", action="store_true", help="train the reference's first seed a second time")
    made.add_argument("--reference", metavar="ARM", help="what the others are compared with; default: the first")
    made.add_argument("--primary", metavar="FIGURE", help="what decides (a wrong name lists all)")
    made.add_argument(
        "--processes", type=int, help="of each run; default: every GPU, or 2 on a CPU, shared by the jobs"
    )
    made.add_argument("--jobs", type=int, default=1, help="runs at a time, on a CPU (default: %(default)s)")
    return made


def parse(made: argparse.ArgumentParser, argv: list[str], flag: str, default: Sequence[str]) -> argparse.Namespace:
    """The command line before ``--``; the ``default`` arms where neither ``--flag`` nor ``--arms`` names any."""
    options = made.parse_args(argv)
    if getattr(options, flag) is None:
        setattr(options, flag, [] if options.arms else list(default))
    return options


def plan(
    options: argparse.Namespace,
    passed_on: list[str],
    launcher: Path,
    load: Callable[[list[str], int], Recipe],
    *,
    flag: str,
    own: Sequence[str],
    read_text: Callable[[str], Arm],
    read_fields: Callable[[str, dict[str, Any]], Arm],
    problems: Sequence[Problem] = (),
    ignored: tuple[str, ...] = (),
) -> list[runs.Planned]:
    """The runs, seed by seed over all arms, once every one's recipe has been checked as the launcher would.

    Args:
        options: of :func:`parser`; a ``reference`` that nobody named is filled in.
        passed_on: what stands behind ``--``.
        launcher: carries the runs out.
        load: its recipe from a command line and the number of processes.
        flag: the option that names arms, which ``read_text`` reads.
        own: fields that the command decides beside :data:`arms.OWN`, and an arm of a file does.
        read_fields: an arm of a file from its name and fields.
        problems: what else is wrong with the command line.
        ignored: fields in which a stored result may differ.

    Raises:
        UserError: everything wrong with any of them.
    """
    decided = (*arms.OWN, *(["seed"] if options.seeds else []))
    found, wrong = read_arms(
        options, flag, read_text, lambda path: arms.read_file(path, (*arms.OWN, "seed"), read_fields)
    )
    wrong += [*problems, *arms.check_passed_on(passed_on, (*decided, *own)), *runs.check_processes(options.processes)]
    wrong += [*check_jobs(options.jobs), *check_seeds(options.seeds)]
    if options.reference is None and found:
        options.reference = found[0].label
    elif not wrong and options.reference not in (labels := [arm.label for arm in found]):
        wrong.append(Problem("reference", options.reference, "no such arm", did_you_mean(options.reference, labels)))
    raise_if_any(wrong)
    count = options.processes or max(1, runs.default_processes() // options.jobs)
    return runs.plan_all(
        found,
        launcher,
        lambda words: load(words, count),
        passed_on=passed_on,
        output=Path(options.output),
        seeds=options.seeds,
        again=options.reference if options.repeat else None,
        ignored=ignored,
    )


def read_arms(
    options: argparse.Namespace,
    flag: str,
    read_text: Callable[[str], Arm],
    read_file: Callable[[str], list[Arm]],
) -> tuple[list[Arm], list[Problem]]:
    """The arms of ``--flag`` and of ``--arms``, and what is wrong with them."""
    found: list[Arm] = []
    wrong: list[Problem] = []
    for read, texts in (
        (lambda text: [read_text(text)], getattr(options, flag)),
        (read_file, [options.arms] if options.arms else []),
    ):
        for text in texts:
            try:
                found += read(text)
            except UserError as error:
                wrong += error.problems
    return found, wrong + arms.check_alike(found, flag)


def check_seeds(seeds: Sequence[int] | None) -> list[Problem]:
    """What is wrong with the seeds that somebody gave."""
    given = seeds or []
    problems = [
        Problem("seeds", each.value, each.wrong, each.remedy)
        for seed in given
        for each in fields.check(Trainer, {"seed": seed})
    ]
    twice = sorted({seed for seed in given if given.count(seed) > 1})
    problems += [Problem("seeds", seed, "named twice", "name it once") for seed in twice]
    if len(given) > MOST_FLIPPED:
        wrong = f"{len(given)} seeds, and the sign-flip test tries all patterns of up to {MOST_FLIPPED}"
        problems.append(Problem("seeds", len(given), wrong, f"give {MOST_FLIPPED} or fewer"))
    return problems


def check_jobs(count: int) -> list[Problem]:
    """What is wrong with a number of runs at a time."""
    import torch

    if count < 1:
        return [Problem("jobs", count, "too few", "give 1 or more")]
    if count > 1 and torch.cuda.is_available():
        return [Problem("jobs", count, "runs at a time would share the GPUs", "leave it out, or hide them from torch")]
    return []


def primary(given: argparse.Namespace, measures: Sequence[Measure]) -> Measure:
    """The one of ``measures`` that decides: as ``--primary`` says, or the first.

    Raises:
        UserError: there is no such figure.
    """
    named = {each.name: each for each in measures}
    if given.primary is None:
        return measures[0]
    if given.primary not in named:
        raise UserError(Problem("primary", given.primary, "no such figure", f"one of: {', '.join(named)}"))
    return named[given.primary]
