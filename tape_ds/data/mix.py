"""Sources mixed by weight: each gives a share of the tokens of the training sequences, exact in expectation.

As in :mod:`tape_ds.data.order`, sample ``i`` is a pure function of (seed, i). Every source has separate sequences
(packed, drawn by PoSE, streamed or generated), a separate seed and separate epochs: a small one begins again while a
large one is in its first. The source of sample ``i`` is drawn from (seed, i), and the sample is the source's next
sequence: its number is the count of samples before ``i`` from this source, known from the draws.

The probability of a source is proportional to ``share / mean tokens of its sequences``, so that shares are of tokens
also where sequences are not full.

**Streamed sources.** Sample ``i`` is from stream worker ``i % W`` of its source, whose sequences are counted for each
worker separately. So each rank reads with different workers, as without weights (:mod:`tape_ds.data.stream`).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from tape_ds.data.order import (
    SEED_OF_SOURCE,
    SOURCE_OF_SAMPLE,
    RunSamples,
    TrainingSequences,
    generator,
)
from tape_ds.data.retrieval.sequences import RetrievalSequences
from tape_ds.data.selection import token_counts
from tape_ds.data.sources.weights import Entry, percent, shares_of, specs_of
from tape_ds.data.stream import StreamedSequences

Sequences = TrainingSequences | StreamedSequences | RetrievalSequences
Built = TypeVar("Built", bound=Sequences)

# samples whose sources are drawn together; decides the draws
BLOCK = 2**14


@dataclass(frozen=True)
class WeightedSource:
    spec: str
    # share of all tokens; all shares sum to 1
    share: float
    sequences: Sequences
    # tokens of each sequence, int64 [sequences]; [1] where all are equal, or their mean is known
    lengths: np.ndarray

    @property
    def stream_workers(self) -> int:
        if isinstance(self.sequences, StreamedSequences):
            return self.sequences.stream.workers
        return 1


class MixedSequences(RunSamples):
    """A run's samples out of several sources; items as of :class:`tape_ds.data.order.TrainingSequences`."""

    def __init__(self, parts: Sequence[WeightedSource], *, samples: int, seed: int):
        self.parts = list(parts)
        self.samples = samples
        self.seed = seed
        weights = np.array([part.share / part.lengths.mean() for part in parts])
        self.probabilities = tuple((weights / weights.sum()).tolist())
        # the samples before each block, for each source and worker; extended on demand
        self._before = [[np.zeros(part.stream_workers, np.int64) for part in parts]]

    def draw(self, index: int) -> dict[str, torch.Tensor]:
        source, number = self.place(index)
        return self.parts[source].sequences[number]

    def places(self, index: int) -> Any:
        block, at = divmod(index, BLOCK)
        drawn = _sources(self.seed, self.probabilities, block)[:at]
        found: list[Any] = []
        for source, (part, before) in enumerate(zip(self.parts, self._counts(block), strict=True)):
            if not isinstance(part.sequences, StreamedSequences):
                found.append(None)
                continue
            workers = (block * BLOCK + np.flatnonzero(drawn == source)) % len(before)
            sequences = before + np.bincount(workers, minlength=len(before))
            found.append(part.sequences.places_of(sequences.tolist()))
        return found

    def load_places(self, places: Any) -> None:
        if not isinstance(places, list) or len(places) != len(self.parts):
            # of other data, which a resumed run may have been allowed
            return
        for part, own in zip(self.parts, places, strict=True):
            if own is not None:
                part.sequences.load_places(own)

    def documents_read(self) -> int:
        parts = [part.sequences for part in self.parts]
        return sum(part.documents_read() for part in parts if isinstance(part, StreamedSequences))

    def place(self, index: int) -> tuple[int, int]:
        """Return the source of sample ``index``, and the sample's number in that source."""
        block, at = divmod(index, BLOCK)
        drawn = _sources(self.seed, self.probabilities, block)
        source = int(drawn[at])
        workers = self.parts[source].stream_workers
        worker = index % workers
        before = self._counts(block)[source][worker] + np.count_nonzero(
            drawn[at % workers : at : workers] == source
        )
        return source, int(before) * workers + worker

    def counts(self, samples: int) -> list[int]:
        block, at = divmod(samples, BLOCK)
        drawn = _sources(self.seed, self.probabilities, block)[:at]
        before = self._counts(block)
        return [
            int(workers.sum() + np.count_nonzero(drawn == source))
            for source, workers in enumerate(before)
        ]

    def tokens(self, samples: int) -> dict[str, int]:
        """Return the tokens of each source in the first ``samples``."""
        found = {}
        for part, count in zip(self.parts, self.counts(samples), strict=True):
            epochs, rest = divmod(count, len(part.lengths))
            found[part.spec] = epochs * int(part.lengths.sum())
            if rest and isinstance(part.sequences, TrainingSequences):
                found[part.spec] += int(part.lengths[part.sequences.order(epochs)[:rest]].sum())
        return found

    @property
    def origin(self) -> str:
        """A line for each source: its samples, and how often it repeats."""
        lines = []
        for part, count in zip(self.parts, self.counts(self.samples), strict=True):
            sequences = part.sequences
            line = f"{percent(part.share)} {part.spec}: {count:,} of {self.samples:,} sequences"
            if isinstance(sequences, StreamedSequences):
                line += f", streamed by {part.stream_workers} workers"
            elif isinstance(sequences, RetrievalSequences):
                line += f", {sequences.origin}"
            else:
                what = "documents" if sequences.pose else "sequences"
                size = len(sequences.stored)
                line += f", {count / size:.2f} times through its {size:,} {what}"
                if sequences.origin:
                    line += f" ({sequences.origin})"
            lines.append(line)
        return "\n".join(lines)

    def _counts(self, block: int) -> list[np.ndarray]:
        """Return the samples before a block, for each source int64 [workers]."""
        while len(self._before) <= block:
            done = len(self._before) - 1
            drawn = _sources(self.seed, self.probabilities, done)
            counts = []
            for source, before in enumerate(self._before[done]):
                workers = (done * BLOCK + np.flatnonzero(drawn == source)) % len(before)
                counts.append(before + np.bincount(workers, minlength=len(before)))
            self._before.append(counts)
        return self._before[block]


# for speed only
@functools.lru_cache(maxsize=2)
def _sources(seed: int, probabilities: tuple[float, ...], block: int) -> np.ndarray:
    return generator(seed, SOURCE_OF_SAMPLE, block).choice(
        len(probabilities), size=BLOCK, p=probabilities
    )


def mix(
    entries: Sequence[Entry], build: Callable[[list[str], int], Built], *, samples: int, seed: int
) -> Built | MixedSequences:
    """Return a run's samples: of a plain list all its sources together; of weighted sources a mixture.

    Args:
        entries: a checked list of data, see :mod:`tape_ds.data.sources.weights`.
        build: specs and a seed -> the sequences of these sources; with weights, ``samples`` of them.
        seed: of the run; each weighted source gets another, or two would be shuffled by the same random numbers.
    """
    specs = specs_of(entries)
    shares = shares_of(entries)
    if shares is None:
        return build(specs, seed)
    parts = []
    for number, (spec, share) in enumerate(zip(specs, shares, strict=True)):
        sequences = build([spec], int(generator(seed, SEED_OF_SOURCE, number).integers(2**63)))
        if isinstance(sequences, StreamedSequences):
            lengths = np.array([sequences.stream.window])
        elif isinstance(sequences, RetrievalSequences):
            lengths = np.array([round(sequences.mean_tokens)])
        else:
            lengths = token_counts(sequences.stored)
            # whole documents are stored
            if sequences.pose is not None:
                lengths = np.minimum(lengths, sequences.pose.window)
            if lengths.min() == lengths.max():
                lengths = lengths[:1]
        parts.append(WeightedSource(spec, share, sequences, lengths))
    return MixedSequences(parts, samples=samples, seed=seed)
