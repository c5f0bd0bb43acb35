"""Plot which relative distances a recipe's sequences contain, and how often, before anything trains.

    python -m tools.experiments.pose_coverage                          recipe demo
    python -m tools.experiments.pose_coverage --recipe llama3_8b_32k --pose_chunks 4 --output runs/coverage
    python -m tools.experiments.pose_coverage --recipe llama_7b_pose_yarn_128k --document_tokens 8192

The distance of a query to a key is the difference of their positions; a model is never trained on a distance without a
pair. The sequences are the run's: the first ``--samples`` of them (2,000, or all), counted exactly. Every field of the
recipe can be overridden as for the launcher. Of the model only its tokenizer is read. With ``--document_tokens N``
neither that nor the data are read: every document is taken to have N tokens.

Written to ``--output`` (``runs/pose_coverage``): ``coverage.png``, ``coverage.csv`` (means over distances that grow by
an eighth of an octave) and ``coverage.json``. Exit codes: 0 done; 2 bad input.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from pandas import DataFrame
from scipy.signal import fftconvolve

from tape_ds import paths, results, storage
from tape_ds.arguments import Parser, below_one
from tape_ds.config import loading
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.data import sources, tokenizer
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.order import TrainingSequences
from tape_ds.data.pack import FILL
from tape_ds.data.pose import PoseSequences
from tape_ds.data.sources import weights
from tape_ds.errors import Problem, check_folder, command, raise_if_any
from tape_ds.training.run import sample_count
from tape_ds.training.runs.extension_data import training_sequences

NAME = "coverage"
MADE_UP = 64
"""Sequences packed from documents of one length: enough for all ways in which the two can overlap."""
PER_OCTAVE = 8
"""Bins of the table and the plot between a distance and its double."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, count, write, print."""
    typed = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m tools.experiments.pose_coverage", description=__doc__)
    parser.add_argument("--samples", type=int, default=2000, help="sequences that are counted")
    parser.add_argument(
        "--document_tokens", type=int, help="take every document to have this length; read none"
    )
    parser.add_argument(
        "--output", default="runs/pose_coverage", help="folder of the plot and the table"
    )
    options, fields = parser.parse_known_args(typed)
    recipe = loading.load(fields, world_size=1, kind=ExtensionRecipe)
    window = recipe.window
    target = recipe.model.target_length
    pose = recipe.data.pose
    problems = below_one(options, "samples") + check_folder("--output", options.output)
    least = 1
    # a document that is shorter than the window is left out
    if recipe.data.packing == "single":
        least = window
    if options.document_tokens is not None and options.document_tokens < least:
        remedy = f"give {least} or more"
        problems.append(
            Problem("--document_tokens", options.document_tokens, "fill no sequence", remedy)
        )
    method = recipe.method.method
    if not recipe.trains:
        reason = f"method = {method!r} trains nothing, no sequence is read"
        problems.append(Problem("method", method, reason, "choose a method that trains"))
    raise_if_any(problems)

    data = {}
    if not options.document_tokens:
        for spec in weights.specs_of(recipe.data.train_data):
            data[spec] = sources.parse(spec).fingerprint()
    started = results.collect(
        command=[Path(__file__).name, *typed],
        seed=recipe.trainer.seed,
        config=recipe.as_dict(),
        data=data,
    )
    sequences: Any
    if options.document_tokens:
        sequences = made_up_sequences(recipe, options.document_tokens)
    else:
        of_model = tokenizer.load_tokenizer(str(paths.of(recipe.model.model)), "model")
        sequences = training_sequences(recipe, of_model, BadRows(recipe.data.skip.bad_rows))
    items = []
    for index in range(min(options.samples, len(sequences))):
        sequence = sequences[index]
        items.append((sequence["position_ids"].numpy(), sequence["document_ids"].numpy()))
    pairs = count_pairs(items, target)

    output = Path(options.output)
    summaries = {"distances": summarise(pairs)}
    if window < target:
        summaries["distances_beyond_the_window"] = summarise(pairs, window)
    bins = bins_of(pairs)
    made = f"packing {recipe.data.packing}"
    if pose.chunks > 1:
        made = f"PoSE, {pose.chunks} chunks"
    # two chunks have a single skip, whose distribution is not chosen
    if pose.chunks > 2:
        made += f", {pose.skips} skips"
    label = f"{recipe.name}: {len(items):,} sequences, {made}"
    draw(bins, output / f"{NAME}.png", label=label, window=window, target=target)
    rows = [list(row.values()) for row in bins]
    storage.write_text(output / f"{NAME}.csv", storage.as_csv(list(bins[0]), rows))
    figures = {"rows": len(items), "queries": int(pairs[0]), "window": window, **summaries}
    results.save(started.finish(figures), output / f"{NAME}.json")
    print(label)
    for part in summaries.values():
        print(
            f"distances {part['from']:,} to {part['to']:,}: {part['seen']:.2%} seen, by {part['median_share']:.2%} "
            f"of the queries (median); pairs a distance: {part['least']:,} at least, {part['median']:,.0f} (median)"
        )
    print(f"written to {output / NAME}.png, .csv, .json", flush=True)
    return 0


def made_up_sequences(recipe: ExtensionRecipe, document_tokens: int) -> TrainingSequences:
    """Return the recipe's sequences if every document had ``document_tokens`` tokens."""
    data = recipe.data
    document = np.zeros(document_tokens, np.int32)
    pose = None
    if data.pose.chunks > 1:
        sequences = [{"input_ids": document}]
        pose = PoseSequences(data.window, recipe.model.target_length, data.pose)
    else:
        count = math.ceil(MADE_UP * data.window / document_tokens)
        sequences = list(FILL[data.packing](repeat(document, count), data.window))
    return TrainingSequences(
        Dataset.from_list(sequences),
        samples=sample_count(recipe, len(sequences)),
        seed=recipe.trainer.seed,
        pose=pose,
        attend_across=data.attend_across,
    )


def count_pairs(sequences: Iterable[tuple[np.ndarray, np.ndarray]], target: int) -> np.ndarray:
    """Count pairs of a query and a key at each distance, int64 [target]; a token with itself counts at 0.

    Args:
        sequences: position ids and document ids of each, both [t]. Positions rise strictly within a document; document
            id -1 is padding. A query attends to itself and to earlier tokens of its document.
        target: positions are in 0 .. target - 1; 2 or more.

    Raises:
        ValueError: a position outside, or one that does not rise.
    """
    pairs = np.zeros(target, np.int64)
    for positions, documents in sequences:
        for document in np.unique(documents[documents >= 0]):
            places = positions[documents == document]
            if places[0] < 0 or places[-1] >= target or (np.diff(places) < 1).any():
                raise ValueError(
                    f"positions of a document must rise strictly within 0 .. {target - 1}"
                )
            # the autocorrelation of the positions, exact once rounded
            occupied = np.zeros(places[-1] - places[0] + 1)
            occupied[places - places[0]] = 1
            correlation = fftconvolve(occupied, occupied[::-1])[len(occupied) - 1 :]
            pairs[: len(occupied)] += np.rint(correlation).astype(np.int64)
    return pairs


def summarise(all_pairs: np.ndarray, start: int = 1) -> dict[str, Any]:
    """Summarise the distances from ``start``: ``seen``, the share with at least one pair; ``least`` and ``median`` of
    the pairs of a distance, and the same divided by the queries."""
    pairs = all_pairs[start:]
    least = int(pairs.min())
    median = float(np.median(pairs))
    return {
        "from": start,
        "to": len(all_pairs) - 1,
        "seen": float((pairs > 0).mean()),
        "longest": int(np.flatnonzero(all_pairs).max()),
        "least": least,
        "median": median,
        "least_share": least / int(all_pairs[0]),
        "median_share": median / int(all_pairs[0]),
    }


def bins_of(pairs: np.ndarray, per_octave: int = PER_OCTAVE) -> list[dict[str, Any]]:
    """Return means over distances ``from`` .. ``to`` that grow by 2 ** (1 / per_octave) from bin to bin: the share of
    them ``seen``, the sum of their ``pairs``, the mean ``share`` of queries, the ``least`` and the ``most`` of one
    distance, and ``whole_rows``, the maximum: the mean share in sequences of one document of ``target`` tokens."""
    # distances are 0 .. target - 1
    target = len(pairs)
    shares = pairs / pairs[0]
    whole = 1 - np.arange(target) / target
    octaves = np.arange(int(np.ceil(np.log2(target))) * per_octave + 1) / per_octave
    edges = np.unique(np.minimum(np.ceil(2.0**octaves).astype(np.int64), target))
    bins = []
    for start, stop in pairwise(edges.tolist()):
        inside = shares[start:stop]
        row = {
            "from": start,
            "to": stop - 1,
            "seen": float((inside > 0).mean()),
            "pairs": int(pairs[start:stop].sum()),
            "share": float(inside.mean()),
            "least": float(inside.min()),
            "most": float(inside.max()),
            "whole_rows": float(whole[start:stop].mean()),
        }
        bins.append(row)
    return bins


def draw(
    bins: Sequence[Mapping[str, Any]], path: Path, *, label: str, window: int, target: int
) -> None:
    """Draw the share of queries with a key at each distance, on logarithmic axes: a line through the bins' means, a
    band from their least to their most, and the maximum. A bin with a distance without a pair is red at the bottom."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    table = DataFrame(bins)
    # the geometric mean: the middle on a logarithmic axis, which has no place for 0
    middle = np.sqrt(table["from"] * table["to"])
    seen = table["share"].where(table["share"] > 0)
    floor = seen.min() / 4
    low = table["least"].clip(floor)
    high = table["most"].clip(floor)
    whole = table["whole_rows"]
    axes.plot(middle, whole, color="#0072B2", ls="--", label=f"sequences of {target:,} tokens")
    axes.plot(middle, seen, color="#D55E00", lw=2, label=label)
    axes.fill_between(middle, low, high, color="#D55E00", alpha=0.25, lw=0, label="least to most")

    sizes = table["to"] - table["from"] + 1
    missing = (sizes * (1 - table["seen"])).sum() / sizes.sum()
    # the legend names the first of them alone
    never: str | None = f"distances never seen: {missing:.1%} of all"
    gaps = table[table["seen"] < 1]
    for first, last in zip(gaps["from"], gaps["to"], strict=True):
        axes.axvspan(first, last + 1, ymax=0.04, color="#CC0000", lw=0, label=never)
        never = None
    axes.axvline(
        window, color="0.35", linestyle="--", lw=1.2, label=f"tokens of a sequence, {window:,}"
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(1, target),
        ylim=(floor, 1.5),
        title="Distances seen in training",
    )
    axes.set(
        xlabel="distance from query to key (positions)",
        ylabel="queries with a key at that distance",
    )
    axes.xaxis.set_major_locator(LogLocator(base=4))
    axes.xaxis.set_major_formatter(FuncFormatter(tokens_label))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.10g}%"))
    axes.legend(frameon=False)
    storage.write_file(path, lambda part: figure.savefig(part, dpi=150, format="png"))


def tokens_label(tokens: float, _: object = None) -> str:
    if tokens >= 1024:
        return f"{tokens / 1024:g}k"
    return f"{tokens:g}"


if __name__ == "__main__":
    sys.exit(main())
