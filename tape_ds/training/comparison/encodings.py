"""Comparisons of positional encodings: one run of a launcher for each arm and seed.

Runs of one seed have the same rows and the same initial weights outside the encoding.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.errors import Problem, raise_if_any
from tape_ds.model import positions
from tape_ds.recipe.recipe import Recipe
from tape_ds.training.comparison import arms, options, runs, summary
from tape_ds.training.comparison.arms import Arm
from tape_ds.training.comparison.measures import Measure, Row

OWN = ("position_encoding", "position_options", "rope_parameters")
"""Fields that an arm decides, beside those of every comparison."""


def plan(
    given: argparse.Namespace,
    passed_on: list[str],
    launcher: Path,
    load: Callable[[list[str], int], Recipe],
    same: Sequence[str],
    problems: Sequence[Problem] = (),
) -> list[runs.Planned]:
    """The runs, as :func:`options.plan` has them checked.

    Args:
        given: the command line before ``--``.
        passed_on: what stands behind it.
        launcher: carries the runs out.
        load: its recipe from a command line and the number of processes.
        same: fields without which arms would not compare.
        problems: what else is wrong with the command line.

    Raises:
        UserError: everything wrong with any of them, or what makes them no comparison.
    """
    planned = options.plan(
        *(given, passed_on, launcher, load),
        flag="encodings",
        own=OWN,
        read_text=lambda text: read_arm(text, given.recipe),
        read_fields=lambda name, fields: Arm(name, {"recipe": given.recipe, **fields}),
        problems=problems,
    )
    raise_if_any(list(arms.unequal({run.arm: run.recipe for run in planned}, same)))
    return planned


def read_arm(text: str, recipe: str) -> Arm:
    """``NAME`` or ``NAME{"option": value}``, in a ``recipe``.

    Raises:
        UserError: no such encoding or option.
    """
    name, chosen = arms.read(text, "encodings")
    raise_if_any(positions.check_options(name, chosen))
    fields: dict[str, Any] = {"recipe": recipe, "position_encoding": name, "position_options": chosen}
    return Arm(arms.labelled(name, chosen), fields)


def row(run: runs.Planned, result: results.Result) -> dict[str, Any]:
    """What the row of every encoding's run has."""
    own = {"parameters": result.figures["parameters"]["all"], "train_loss": summary.last_loss(result)}
    return summary.row("encoding", run, result) | own


def as_csv(rows: Sequence[Row], measures: Sequence[Measure]) -> str:
    """A line for every run, for programs: what all rows have, and the ``measures``."""
    names = ["encoding", "seed", "again", "parameters", "train_loss"]
    cells = [
        [*(each[name] for name in names), *(measure.of(each) for measure in measures), each["seconds"]] for each in rows
    ]
    return summary.as_csv([*names, *(measure.name for measure in measures), "seconds"], cells)
