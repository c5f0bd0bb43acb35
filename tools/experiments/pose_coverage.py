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
from tape_ds.training.runs.extension import training_sequences

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
    own, fields = parser.parse_known_args(typed)
    recipe = loading.load(fields, world_size=1, kind=ExtensionRecipe)
    window = recipe.window
    target = recipe.model.target_length
    pose = recipe.data.pose
    problems = below_one(own, "samples") + check_folder("--output", own.output)
    least = window if recipe.data.packing == "single" else 1
    if own.document_tokens is not None and own.document_tokens < least:
        problems.append(
            Problem(
                "document_tokens", own.document_tokens, "fill no sequence", f"give {least} or more"
            )
        )
    if not recipe.trains:
        wrong = f"method = {recipe.method.method!r} trains nothing, no sequence is read"
        problems.append(
            Problem("method", recipe.method.method, wrong, "choose a method that trains")
        )
    raise_if_any(problems)

    specs = [] if own.document_tokens else weights.specs_of(recipe.data.train_data)
    started = results.collect(
        command=[Path(__file__).name, *typed],
        seed=recipe.trainer_value("seed"),
        config=recipe.as_dict(),
        data={spec: sources.parse(spec).fingerprint() for spec in specs},
    )
    sequences: Any
    if own.document_tokens:
        sequences = made_up_sequences(recipe, own.document_tokens)
    else:
        found = tokenizer.load_tokenizer(str(paths.of(recipe.model.model)), "model")
        sequences = training_sequences(recipe, found, BadRows(recipe.data.skip.bad_rows))
    items = [sequences[index] for index in range(min(own.samples, len(sequences)))]
    pairs = count_pairs(
        ((item["position_ids"].numpy(), item["document_ids"].numpy()) for item in items), target
    )

    output = Path(own.output)
    summaries = {"distances": summarise(pairs)}
    if window < target:
        summaries["distances_beyond_the_window"] = summarise(pairs, window)
    bins = bins_of(pairs)
    skips = f", {pose.skips} skips" if pose.chunks > 2 else ""
    if pose.chunks > 1:
        made = f"PoSE, {pose.chunks} chunks{skips}"
    else:
        made = f"packing {recipe.data.packing}"
    label = f"{recipe.name}: {len(items):,} sequences, {made}"
    draw(bins, output / f"{NAME}.png", label=label, window=window, target=target)
    storage.write_text(
        output / f"{NAME}.csv",
        storage.as_csv(list(bins[0]), (list(each.values()) for each in bins)),
    )
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
        seed=recipe.trainer_value("seed"),
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
            own = positions[documents == document]
            if own[0] < 0 or own[-1] >= target or (np.diff(own) < 1).any():
                raise ValueError(
                    f"positions of a document must rise strictly within 0 .. {target - 1}"
                )
            # the autocorrelation of the positions, exact once rounded
            occupied = np.zeros(own[-1] - own[0] + 1)
            occupied[own - own[0]] = 1
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
    target = len(pairs)
    shares = pairs / pairs[0]
    whole = 1 - np.arange(target) / target
    octaves = np.arange(int(np.ceil(np.log2(target))) * per_octave + 1) / per_octave
    edges = np.unique(np.minimum(np.ceil(2.0**octaves).astype(np.int64), target))
    bins = []
    for start, stop in pairwise(edges.tolist()):
        own = shares[start:stop]
        each: dict[str, Any] = {"from": start, "to": stop - 1, "seen": float((own > 0).mean())}
        each |= {"pairs": int(pairs[start:stop].sum()), "share": float(own.mean())}
        each |= {
            "least": float(own.min()),
            "most": float(own.max()),
            "whole_rows": float(whole[start:stop].mean()),
        }
        bins.append(each)
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
    middle = [math.sqrt(each["from"] * each["to"]) for each in bins]
    floor = min(each["share"] for each in bins if each["share"] > 0) / 4
    shown = [each["share"] if each["share"] > 0 else math.nan for each in bins]
    low, high = ([max(each[end], floor) for each in bins] for end in ("least", "most"))
    whole = [each["whole_rows"] for each in bins]
    axes.plot(middle, whole, color="#0072B2", ls="--", label=f"sequences of {target:,} tokens")
    axes.plot(middle, shown, color="#D55E00", lw=2, label=label)
    axes.fill_between(middle, low, high, color="#D55E00", alpha=0.25, lw=0, label="least to most")

    sizes = [each["to"] - each["from"] + 1 for each in bins]
    missing = sum(size * (1 - each["seen"]) for size, each in zip(sizes, bins, strict=True)) / sum(
        sizes
    )
    share = f"distances never seen: {missing:.1%} of all"
    for index, each in enumerate(each for each in bins if each["seen"] < 1):
        axes.axvspan(
            each["from"],
            each["to"] + 1,
            ymax=0.04,
            color="#CC0000",
            lw=0,
            label=None if index else share,
        )
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
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.10g}%"))
    axes.legend(frameon=False)
    storage.write_file(path, lambda part: figure.savefig(part, dpi=150, format="png"))


if __name__ == "__main__":
    sys.exit(main())
