"""Train the same small model to calculate with one positional encoding after another, and compare how far it reaches.

    python tools/compare_arithmetic.py                                       rope, fire, nope, tape; recipe addition_6
    python tools/compare_arithmetic.py --encodings rope 'rope{"abacus": true}' --digits 12 --output runs/two
    python tools/compare_arithmetic.py --recipe arithmetic/addition_20 --processes 8 -- --max_steps 5000

Each is a run of ``launchers/train_arithmetic.py`` in a folder of its own below ``--output``: same seed, same rows in
the same order, same initial weights outside the encoding. ``--seeds 0 1 2`` trains each with several, and the page then
has intervals and says which differ from ``--reference`` (docs/comparing.md). What stands behind ``--`` goes to every
run. Then ``python -m evaluation arithmetic`` asks it held-out problems of every pair of lengths, to the recipe's
``test_digits`` (twice the trained lengths) or to ``--digits``. What is complete is not repeated, a run or a grid that
was cut short goes on, so the same command can be started again. After every run the table (md, json), all cells (csv)
and a figure with a heat map of each are written to ``--output``, or to ``--results``.

Exit codes: 0 done; 1 a run failed (the others are compared, and the failed one is named); 2 something to mend, nothing
was started.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.data.arithmetic.tasks import TASKS, Task
from tape_ds.errors import Problem, UserError, command, raise_if_any
from tape_ds.installation import ROOT
from tape_ds.recipe import arithmetic
from tape_ds.recipe.arithmetic import ArithmeticRecipe
from tape_ds.scoring import arithmetic as scoring
from tape_ds.scoring.arithmetic import Cell, Pair
from tape_ds.training.comparison import encodings, options, page, runs, summary
from tape_ds.training.comparison.grid_map import Grid, draw
from tape_ds.training.comparison.measures import PARAMETERS, Measure, Row, seconds, training_loss
from tape_ds.training.comparison.study import Study

LAUNCHER = ROOT / "launchers" / "train_arithmetic.py"
NAME = "compare_arithmetic"
DEFAULT = ("rope", "fire", "nope", "tape")
SAME = ("task", "max_digits", "max_digits_second", "test_digits")
"""Fields without which grids would not compare."""
PARTS = {
    "beyond": "beyond",
    "trained": "trained lengths",
    "both_beyond": "both longer",
    "whole": "whole grid",
    "twice": "to twice the trained lengths",
}
"""Means over parts of the grid that may decide, and what the page calls them; the first does where nobody says."""
SHOWN = ("trained", "beyond", "both_beyond", "whole")
"""Those that the table has."""


@dataclass(frozen=True)
class Compared:
    """One run, and its grid."""

    run: runs.Planned
    result: results.Result
    grid: results.Result


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then train and ask each, and compare what there is after every run."""
    own, passed_on = options.split(sys.argv[1:] if argv is None else argv)
    given = parse(own)
    planned = check(given, passed_on)
    primary = options.primary(given, measures())
    asked = sys.argv if argv is None else [Path(__file__).name, *argv]
    return runs.compare(
        planned, given.jobs, lambda run: train_and_ask(run, given), lambda: write(planned, given, primary, asked)
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line before ``--``."""
    recipe, where = "arithmetic/addition_6", "a recipe of launchers/train_arithmetic.py"
    parser = options.parser(__doc__, name=NAME, flag="encodings", recipe=recipe, recipe_help=where)
    parser.add_argument(
        "--digits", type=int, nargs="+", metavar="N", help="the grid's last lengths; default: the recipe's"
    )
    parser.add_argument("--samples", type=int, default=100, help="in each cell (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=400, help="samples asked at once (default: %(default)s)")
    return options.parse(parser, argv, "encodings", DEFAULT)


def measures() -> list[Measure]:
    """What a run is measured by; a reading of its grid for each."""
    parts = [Measure(name, title, part(name), lower=False, digits=1, is_share=True) for name, title in PARTS.items()]
    return [*parts, training_loss(4)]


def part(name: str) -> Callable[[Row], float | None]:
    """Reads a mean over a part of the grid."""
    return lambda row: row["means"].get(name, {}).get("value")


def check(given: argparse.Namespace, passed_on: list[str]) -> list[runs.Planned]:
    """The runs, once every one's recipe has been checked as the launcher would, and the grid against them.

    Raises:
        UserError: everything wrong with any of them.
    """
    problems = scoring.check_counts("", given.samples, given.batch_size)
    problems += scoring.check_sizes("digits", given.digits)
    planned = encodings.plan(given, passed_on, LAUNCHER, arithmetic.load, SAME, problems)
    recipe = recipe_of(planned[0])
    if recipe.addressing is not None:
        wrong = f"{recipe.data.task} has no operands, so there is no grid of them to compare"
        raise UserError(Problem("recipe", given.recipe, wrong, "name a recipe of arithmetic"))
    task, last = TASKS[recipe.data.task], last_of(recipe, given)
    raise_if_any(scoring.check_reach("digits", last, task))
    arms = {run.arm: run for run in planned}
    raise_if_any([each for run in arms.values() for each in check_draws(run, task, last)])
    return planned


def check_draws(run: runs.Planned, task: Task, last: Pair) -> list[Problem]:
    """Whether an encoding that must know the tests' lengths beforehand knows those of the grid: else it would be the
    only one that the comparison wrongs."""
    wrong = scoring.drawn_too_short(recipe_of(run).checked_config(), task, last)
    told = f"{run.arm}: {wrong}"
    return [] if wrong is None else [Problem("digits", max(last), told, f"add -- --test_digits {max(last)}")]


def recipe_of(run: runs.Planned) -> ArithmeticRecipe:
    """With the fields that only such a recipe has."""
    assert isinstance(run.recipe, ArithmeticRecipe)
    return run.recipe


def last_of(recipe: ArithmeticRecipe, given: argparse.Namespace) -> Pair:
    """Where the grid ends."""
    return scoring.both(given.digits or recipe.tested)


def evaluation_log(run: runs.Planned) -> Path:
    """What the evaluation prints goes there."""
    return run.folder / "evaluation.txt"


def train_and_ask(run: runs.Planned, given: argparse.Namespace) -> Path | None:
    """Carry a run and its grid out; the log of what failed."""
    if not runs.carry_out(run):
        return run.log
    return evaluation_log(run) if evaluate(run, given) is None else None


def evaluate(run: runs.Planned, given: argparse.Namespace) -> results.Result | None:
    """The grid of a complete run, now if not before; None where it failed.

    Raises:
        UserError: a stored result that is none.
    """
    if (known := stored(run, given)) is not None:
        print(f"{run.label}: its grid is complete, not repeated", flush=True)
        return known
    first, second = last_of(recipe_of(run), given)
    words = ["arithmetic", str(run.folder), "--overwrite", "--digits", str(first), str(second)]
    words += ["--samples", str(given.samples), "--batch_size", str(given.batch_size)]
    print(f"{run.label}: asking, see {evaluation_log(run)}", flush=True)
    code = runs.launch_module("evaluation", words, run.recipe.world_size, evaluation_log(run))
    return stored(run, given) if code == 0 else None


def stored(run: runs.Planned, given: argparse.Namespace) -> results.Result | None:
    """The stored grid of these lengths and samples, made after the run; None where there is none."""
    file = run.folder / "evaluation" / "arithmetic.json"
    trained, found = run.result(), results.load(file) if file.is_file() else None
    if trained is None or trained.finished is None or found is None or found.finished is None:
        return None
    asked = {"digits": list(last_of(recipe_of(run), given)), "samples": given.samples, "seed": 0}
    asked |= {"batch_size": given.batch_size, "use_cache": True}
    same = all({**found.config, "seed": found.seed}.get(name) == value for name, value in asked.items())
    later = datetime.fromisoformat(found.started) >= datetime.fromisoformat(trained.finished)
    return found if same and later else None


def write(planned: Sequence[runs.Planned], given: argparse.Namespace, primary: Measure, asked: Sequence[str]) -> str:
    """Table and figure of the complete runs."""
    found = [
        Compared(run, result, grid)
        for run in planned
        if (result := run.result()) is not None and (grid := stored(run, given)) is not None
    ]
    first = found[0].grid
    told = {name: first.figures[name] for name in ("task", "trained", "sizes")}
    told |= {name: first.config[name] for name in ("digits", "samples")}
    measured = measures()
    named = {each.name: each for each in measured}
    study = Study("encoding", [row(each) for each in found], measured, primary, given.reference)
    folder = Path(given.results or given.output)
    text = page.write(
        study,
        [PARAMETERS, named["train_loss"], *(named[name] for name in SHOWN), seconds("training s")],
        summary.collect(asked, [each.result for each in found]),
        told,
        folder=folder,
        name=NAME,
        lead=lead(told),
        csv=as_csv(found),
    )
    draw([pooled(arm, found) for arm in study.arms], folder / f"{NAME}.png", title(told))
    return f"{text}\nwritten to {folder / NAME}.md, .csv, .json, .png"


def row(compared: Compared) -> dict[str, Any]:
    """What one run and its grid came to."""
    result = compared.result
    return encodings.row(compared.run, result) | {
        "means": compared.grid.figures["means"],
        "grid_seconds": compared.grid.figures["cost"]["seconds"],
    }


def pooled(arm: str, found: Sequence[Compared]) -> Grid:
    """An arm's grid, its runs' samples together."""
    grids = [Grid.of(arm, each.grid.figures) for each in found if each.run.arm == arm and not each.run.again]
    cells = [
        Cell(own[0].first, own[0].second, sum(each.samples for each in own), sum(each.correct for each in own))
        for own in zip(*(grid.cells for grid in grids), strict=True)
    ]
    return replace(grids[0], cells=cells)


def as_csv(found: Sequence[Compared]) -> str:
    """Every cell of every grid."""
    names = ["first", "second", "samples", "correct"]
    cells = [
        [each.run.arm, each.run.seed, each.run.again, *(cell[name] for name in names)]
        for each in found
        for cell in each.grid.figures["cells"]
    ]
    return summary.as_csv(["encoding", "seed", "again", *names], cells)


def title(told: Mapping[str, Any], framed: str = " (framed)") -> str:
    """What was trained and asked."""
    trained, digits = (" x ".join(map(str, told[name])) for name in ("trained", "digits"))
    return f"{told['task']}, trained to {trained}{framed}, asked to {digits}"


def lead(told: Mapping[str, Any]) -> str:
    """What stands above the table."""
    return (
        f"Exact match on {title(told, '')}: {told['samples']} held-out problems of each pair of lengths (fewer where "
        "there are fewer), greedy, the whole answer and its end. The mean of the whole grid has the trained lengths in "
        "it, and a model that knows these and nothing else reaches their share; beyond is where either operand is "
        "longer than any that was trained, and both longer a part of that."
    )


if __name__ == "__main__":
    sys.exit(main())
