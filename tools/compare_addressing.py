"""Train the same small model on a task of addressing with one positional encoding after another, and compare them.

    python tools/compare_addressing.py --encodings rope tape 'tape{"state_norm": "unit"}' --seeds 0 1 2 3 4
    python tools/compare_addressing.py --recipe addressing/flip_flop --arms arms.yaml --seeds 0 1 2 --jobs 2

Each is a run of ``launchers/train_arithmetic.py`` in a folder of its own below ``--output``, which asks its tests when
it has trained. Runs of one seed have the same rows in the same order and the same initial weights outside the encoding.
Seeds, arms, resuming and the page are those of every comparison: docs/comparing.md. Figures are called
``accuracy_LENGTH``, with the kind behind it where a test has one; the longest test decides where
``--primary`` does not say. A run is one process where ``--processes`` does not say. What stands behind ``--`` goes to
every run.

Exit codes: 0 done; 1 a run failed (the others are compared, and the failed one is named); 2 something to mend, nothing
was started.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.data.addressing.lengths import Test
from tape_ds.errors import Problem, UserError, command
from tape_ds.installation import ROOT
from tape_ds.recipe import arithmetic
from tape_ds.recipe.addressing import Addressing
from tape_ds.recipe.arithmetic import ArithmeticRecipe
from tape_ds.training.comparison import encodings, options, page, runs, summary
from tape_ds.training.comparison.measures import PARAMETERS, Measure, seconds, training_loss
from tape_ds.training.comparison.study import Study

LAUNCHER = ROOT / "launchers" / "train_arithmetic.py"
NAME = "compare_addressing"
DEFAULT = ("rope", "tape")
SAME = ("task", "task_options", "train_lengths", "test_lengths", "held_out_samples")
"""Fields without which answers would not compare."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then run, and compare what there is after every run."""
    own, passed_on = options.split(sys.argv[1:] if argv is None else argv)
    given = parse(own)
    planned = check(given, passed_on)
    primary = options.primary(given, measures(asked_of(planned[0])))
    asked = sys.argv if argv is None else [Path(__file__).name, *argv]
    return runs.compare(planned, given.jobs, runs.train, lambda: write(planned, given, primary, asked))


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line before ``--``."""
    recipe, where = "addressing/look_back", "a recipe of addressing of launchers/train_arithmetic.py"
    parser = options.parser(__doc__, name=NAME, flag="encodings", recipe=recipe, recipe_help=where)
    parser.set_defaults(processes=1)  # these recipes have no engine, and models that one process is enough for
    return options.parse(parser, argv, "encodings", DEFAULT)


def check(given: argparse.Namespace, passed_on: list[str]) -> list[runs.Planned]:
    """The runs, see :func:`encodings.plan`.

    Raises:
        UserError: everything wrong with any of them, or a task without such tests.
    """
    planned = encodings.plan(given, passed_on, LAUNCHER, arithmetic.load, SAME)
    recipe = planned[0].recipe
    assert isinstance(recipe, ArithmeticRecipe)
    if recipe.addressing is None:
        wrong = f"{recipe.data.task} is compared by a grid of lengths"
        raise UserError(Problem("recipe", given.recipe, wrong, "use tools/compare_arithmetic.py"))
    if not recipe.data.held_out_samples:
        raise UserError(Problem("held_out_samples", 0, "nothing is asked", "give 1 or more"))
    return planned


def asked_of(run: runs.Planned) -> Addressing:
    """The task of all runs, and its tests."""
    recipe = run.recipe
    assert isinstance(recipe, ArithmeticRecipe) and recipe.addressing is not None
    return recipe.addressing


def measures(asked: Addressing) -> list[Measure]:
    """What a run is measured by, the longest test first."""
    return [*map(accuracy, sorted(asked.tests, key=lambda test: -test.length)), training_loss(3)]


def accuracy(test: Test) -> Measure:
    """The share of right answers in a test."""
    name = figure(test.length, test.kind)
    of_kind = f", {test.kind}" if test.kind else ""
    title, header = f"accuracy at length {test.length:,}{of_kind}", f"{test.length:,}{of_kind}"
    return Measure(name, title, lambda row: row["accuracy"].get(name), header, lower=False, digits=1, is_share=True)


def figure(length: int, kind: str) -> str:
    """What ``--primary`` and the stored result call it."""
    return "_".join(["accuracy", str(length), *([kind.replace(" ", "_")] if kind else [])])


def write(planned: Sequence[runs.Planned], given: argparse.Namespace, primary: Measure, asked: Sequence[str]) -> str:
    """The page of the complete runs."""
    found = runs.complete(planned)
    addressing = asked_of(planned[0])
    measured = measures(addressing)
    study = Study("encoding", [row(run, result) for run, result in found], measured, primary, given.reference)
    folder = Path(given.results or given.output)
    first, last = addressing.trained
    trained = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    text = page.write(
        study,
        [PARAMETERS, measured[-1], *measured[-2::-1], seconds("s")],
        summary.collect(asked, [result for _, result in found]),
        {"task": addressing.task.name, "trained": list(addressing.trained)},
        folder=folder,
        name=NAME,
        lead=f"Right answers on {addressing.task.name} by length, trained at lengths {trained}; chance is "
        f"{addressing.task.chance:.1%}. Held-out rows, the same for every run.",
        csv=encodings.as_csv(study.rows, measured[-2::-1]),
    )
    return f"{text}\nwritten to {folder / NAME}.md, .csv, .json"


def row(run: runs.Planned, result: results.Result) -> dict[str, Any]:
    """What one run came to."""
    tests = result.figures["addressing"]
    own = {"accuracy": {figure(each["length"], each["kind"]): each["share"] for each in tests}}
    return encodings.row(run, result) | own


if __name__ == "__main__":
    sys.exit(main())
