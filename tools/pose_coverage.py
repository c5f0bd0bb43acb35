"""Which relative distances a recipe's sequences show the model, and how often: a plot and a table, before anything
trains.

    python tools/pose_coverage.py                                              recipe demo
    python tools/pose_coverage.py --recipe llama3_8b_32k --pose_chunks 4 --output runs/coverage
    python tools/pose_coverage.py --recipe llama_7b_pose_yarn_128k --document_tokens 8192

The sequences are the run's own, by number: the first ``--samples`` of them (2,000, or as many as the run has), counted
exactly by ``tape_ds/data/coverage.py``. Every field of the recipe can be overridden as for the launcher. Of the model
only its tokenizer is read. With ``--document_tokens N`` neither that nor the data are: every document is taken to have
N tokens. PoSE's positions are the same for any document of a window or more.

Written to ``--output`` (``runs/pose_coverage``): ``coverage.png``, ``coverage.csv`` (means over distances that grow by
an eighth of an octave) and ``coverage.json`` (command, versions, figures).

Exit codes: 0 done; 2 something to mend.
"""

from __future__ import annotations

import argparse
import sys
from itertools import repeat
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tape_ds import results, storage
from tape_ds.arguments import Parser, below_one
from tape_ds.config import loading
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.data import coverage, sources
from tape_ds.data.pack import FILL
from tape_ds.data.sources import weights
from tape_ds.errors import Problem, check_folder, command, raise_if_any

if TYPE_CHECKING:
    from tape_ds.data.mix import MixedSequences
    from tape_ds.data.order import TrainingSequences

NAME = "coverage"

_MADE_UP = 64
"""Sequences that are packed from documents of one length: enough for every way in which they meet a sequence's
borders."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, count, write, print."""
    given = sys.argv[1:] if argv is None else argv
    parser = Parser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000, help="sequences that are counted")
    parser.add_argument("--document_tokens", type=int, help="take every document to have so many tokens; read none")
    parser.add_argument("--output", default="runs/pose_coverage", help="folder of the plot and the table")
    own, fields = parser.parse_known_args(given)
    recipe = loading.load(fields, world_size=1, kind=ExtensionRecipe)
    raise_if_any(problems(own, recipe))
    specs = [] if own.document_tokens else weights.specs_of(recipe.data.train_data)
    started = results.collect(
        command=[Path(__file__).name, *given],
        seed=recipe.trainer_value("seed"),
        config=recipe.as_dict(),
        data={spec: sources.parse(spec).fingerprint() for spec in specs},
    )
    sequences = made_up_sequences(recipe, own.document_tokens) if own.document_tokens else real_sequences(recipe)
    items = (sequences[index] for index in range(min(own.samples, len(sequences))))
    layouts = ((item["position_ids"].numpy(), item["document_ids"].numpy()) for item in items)
    found = coverage.measure(layouts, recipe.model.target_length)
    write(found, recipe, started, Path(own.output))
    return 0


def problems(own: argparse.Namespace, recipe: ExtensionRecipe) -> list[Problem]:
    """Return what is wrong with this command's own options."""
    found = below_one(own, "samples") + check_folder("--output", own.output)
    least = recipe.window if recipe.data.packing == "single" else 1
    if own.document_tokens is not None and own.document_tokens < least:
        found.append(Problem("document_tokens", own.document_tokens, "fill no sequence", f"give {least} or more"))
    if not recipe.trains:
        wrong = f"method = {recipe.method.method!r} trains nothing, no sequence is read"
        found.append(Problem("method", recipe.method.method, wrong, "choose a method that trains"))
    return found


def real_sequences(recipe: ExtensionRecipe) -> TrainingSequences | MixedSequences:
    """Return the sequences of the run."""
    from tape_ds.data import tokenizer
    from tape_ds.models.loading import model_folder
    from tape_ds.training.runs.extension import base_path, training_sequences

    return training_sequences(recipe, tokenizer.load(model_folder.resolve(base_path(recipe.model.model)), "model"))


def made_up_sequences(recipe: ExtensionRecipe, document_tokens: int) -> TrainingSequences:
    """Return sequences as the recipe would have them if every document had ``document_tokens`` tokens."""
    from datasets import Dataset

    from tape_ds.data.order import TrainingSequences
    from tape_ds.data.pose import PoseSequences
    from tape_ds.training.run import sample_count

    data, document, pose = recipe.data, np.zeros(document_tokens, np.int32), None
    if data.pose.chunks > 1:
        sequences, pose = [{"input_ids": document}], PoseSequences(data.window, recipe.model.target_length, data.pose)
    else:
        count = ceil(_MADE_UP * data.window / document_tokens)
        sequences = list(FILL[data.packing](repeat(document, count), data.window))
    return TrainingSequences(
        Dataset.from_list(sequences),
        samples=sample_count(recipe, len(sequences)),
        seed=recipe.trainer_value("seed"),
        pose=pose,
        attend_across=data.attend_across,
    )


def write(found: coverage.Coverage, recipe: ExtensionRecipe, started: results.Result, folder: Path) -> None:
    """Plot, table and result of one recipe, and a few lines on the screen."""
    from tape_ds.training import plots

    window, target, chunks = recipe.window, recipe.model.target_length, recipe.data.pose.chunks
    counted = {"distances": found.summary()}
    if window < target:
        counted["distances_beyond_the_window"] = found.summary(window)
    bins = found.bins()
    skips = f", {recipe.data.pose.skips} skips" if chunks > 2 else ""
    made = f"PoSE, {chunks} chunks{skips}" if chunks > 1 else f"packing {recipe.data.packing}"
    label = f"{recipe.name}: {found.sequences:,} sequences, {made}"
    plots.coverage(bins, folder / f"{NAME}.png", label=label, window=window, target=target)
    storage.write_text(folder / f"{NAME}.csv", storage.as_csv(list(bins[0]), (list(each.values()) for each in bins)))
    figures = {"rows": found.sequences, "queries": found.queries, "window": window, **counted}
    results.save(started.finish(figures), folder / f"{NAME}.json")
    print(label)
    for part in counted.values():
        print(
            f"distances {part['from']:,} to {part['to']:,}: {part['seen']:.2%} seen, by {part['median_share']:.2%} "
            f"of the queries (median); pairs a distance: {part['least']:,} at least, {part['median']:,.0f} (median)"
        )
    print(f"written to {folder / NAME}.png, .csv, .json", flush=True)


if __name__ == "__main__":
    sys.exit(main())
