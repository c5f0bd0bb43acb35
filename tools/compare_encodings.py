"""Train the same small model with one positional encoding after another, and compare perplexity by length.

    python tools/compare_encodings.py                                         every encoding, recipe tiny
    python tools/compare_encodings.py --encodings rope tape 'tape{"form": "vector"}' --output runs/three
    python tools/compare_encodings.py --recipe my.yaml --processes 8 -- --max_steps 500 --learning_rate 1e-3

Each is a run of ``launchers/pretrain_c4.py`` in a folder of its own below ``--output``: same seed, same rows in the
same order, same initial weights outside the encoding. ``--seeds 0 1 2`` trains each with several, and the page then has
intervals and says which differ from ``--reference`` (docs/comparing.md). Whatever stands behind ``--`` goes to every
run. A run that is complete is not repeated, one that was cut short goes on from its last checkpoint, so the same
command can be started again. After every run the table (md, csv, json) and the plot are written to ``--output``, or to
``--results``.

Exit codes: 0 done; 1 a run failed (the others are compared, and the failed one is named); 2 something to mend, nothing
was started.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tape_ds import results
from tape_ds.errors import command
from tape_ds.installation import ROOT
from tape_ds.model import positions
from tape_ds.recipe import pretraining
from tape_ds.recipe.recipe import Recipe
from tape_ds.training.comparison import encodings, options, page, runs, summary
from tape_ds.training.comparison.measures import PARAMETERS, Measure, seconds, training_loss
from tape_ds.training.comparison.study import Study

LAUNCHER = ROOT / "launchers" / "pretrain_c4.py"
NAME = "compare_encodings"
SAME = ("train_data", "eval_data", "eval_lengths", "eval_tokens", "tokenizer", "vocab_size")
"""Fields without which perplexities would not compare."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check everything, then run, and compare what there is after every run."""
    own, passed_on = options.split(sys.argv[1:] if argv is None else argv)
    given = parse(own)
    planned = check(given, passed_on)
    primary = options.primary(given, measures(planned[0].recipe))
    asked = sys.argv if argv is None else [Path(__file__).name, *argv]
    return runs.compare(planned, given.jobs, runs.train, lambda: write(planned, given, primary, asked))


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line before ``--``."""
    where = "a recipe of launchers/pretrain_c4.py"
    parser = options.parser(__doc__, name=NAME, flag="encodings", recipe="tiny", recipe_help=where)
    return options.parse(parser, argv, "encodings", positions.available())


def check(given: argparse.Namespace, passed_on: list[str]) -> list[runs.Planned]:
    """The runs, see :func:`encodings.plan`."""
    return encodings.plan(given, passed_on, LAUNCHER, pretraining.load, SAME)


def measures(recipe: Recipe) -> list[Measure]:
    """What a run of this recipe is measured by; where nobody says, the longest text decides."""
    asked = recipe.as_dict()
    lengths = sorted(asked["eval_lengths"], reverse=True) if asked["eval_data"] else []
    return [*(perplexity(length, recipe.window) for length in lengths), training_loss(3)]


def perplexity(length: int, window: int) -> Measure:
    """That of texts of a length, by a model trained on windows."""
    header = f"{length:,} ({length / window:g}x)"
    key = str(length)
    return Measure(
        f"perplexity_{key}", f"perplexity at {length:,} tokens", lambda row: row["perplexity"].get(key), header
    )


def write(planned: Sequence[runs.Planned], given: argparse.Namespace, primary: Measure, asked: Sequence[str]) -> str:
    """Table and plot of the complete runs."""
    from tape_ds.training import plots

    found = runs.complete(planned)
    rows = [row(run, result) for run, result in found]
    measured, window = measures(planned[0].recipe), planned[0].recipe.window
    study = Study("encoding", rows, measured, primary, given.reference)
    text = page.write(
        study,
        [PARAMETERS, measured[-1], *measured[-2::-1], seconds("s")],
        summary.collect(asked, [result for _, result in found]),
        {"window": window},
        folder=(folder := Path(given.results or given.output)),
        name=NAME,
        lead=f"Perplexity on held-out text by length, trained on rows of {window:,} tokens. Lower is better; the same "
        "documents are scored at every length.",
        csv=encodings.as_csv(rows, measured[-2::-1]),
    )
    curves = {
        arm: {int(key): fmean(each["perplexity"][key] for each in own) for key in own[0]["perplexity"]}
        for arm, own in study.arms.items()
    }
    plots.perplexity_by_length(curves, folder / f"{NAME}.png", window)
    return f"{text}\nwritten to {folder / NAME}.md, .csv, .json, .png"


def row(run: runs.Planned, result: results.Result) -> dict[str, Any]:
    """What one run came to."""
    scores = result.figures["perplexity"]
    own = {"perplexity": {length: score["perplexity"] for length, score in scores.items()}}
    return encodings.row(run, result) | own


if __name__ == "__main__":
    sys.exit(main())
