"""Which relative distances a run's sequences show the model, and how often.

The distance of a query to a key is the difference of their positions. A sequence of ``T`` tokens whose positions begin
at 0 and skip nothing has ``T - d`` pairs at distance ``d``; PoSE's sequences have the pairs within each chunk, and
between chunks those that its skips make. A distance that no pair had is one that the model has to meet untrained.

Counts are exact: of a document the correlation of its positions with themselves, by Fourier transform.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Coverage:
    """Pairs of a query and a key that it attends to, by their distance."""

    pairs: np.ndarray
    """int64 [target]: pairs at distance 0 .. target - 1; a token with itself counts at 0."""
    sequences: int
    """Sequences that were counted."""

    @property
    def target(self) -> int:
        """Distances 0 .. target - 1 are wanted."""
        return len(self.pairs)

    @property
    def queries(self) -> int:
        """Tokens that were counted, each once as a query."""
        return int(self.pairs[0])

    @property
    def share(self) -> np.ndarray:
        """float64 [target]: the share of queries that have a key at each distance."""
        return self.pairs / self.queries

    @property
    def whole_sequences(self) -> np.ndarray:
        """float64 [target]: the same of sequences of ``target`` tokens from one document, the most that any sequence
        can have."""
        return 1 - np.arange(self.target) / self.target

    def summary(self, start: int = 1) -> dict[str, Any]:
        """Return what was seen of the distances ``start`` .. target - 1.

        ``seen`` is the share of these distances that occurred at all; ``least`` and ``median`` say how many pairs a
        distance had, and ``least_share`` and ``median_share`` how many pairs a query.
        """
        pairs = self.pairs[start:]
        least, median = int(pairs.min()), float(np.median(pairs))
        return {
            "from": start,
            "to": self.target - 1,
            "seen": float((pairs > 0).mean()),
            "longest": int(np.flatnonzero(self.pairs).max()),
            "least": least,
            "median": median,
            "least_share": least / self.queries,
            "median_share": median / self.queries,
        }

    def bins(self, per_octave: int = 8) -> list[dict[str, Any]]:
        """Means over distances that grow by 2 ** (1 / per_octave) from bin to bin, for a table or a plot.

        Each bin has its distances ``from`` .. ``to``, the share of them ``seen``, the ``pairs`` of all together, the
        mean ``share`` of queries, the ``least`` and the ``most`` of one distance, and what ``whole_sequences`` would
        have.
        """
        octaves = np.arange(int(np.ceil(np.log2(self.target))) * per_octave + 1) / per_octave
        edges = np.unique(np.minimum(np.ceil(2.0**octaves).astype(np.int64), self.target))
        found = []
        for start, stop in pairwise(edges):
            here = self.share[start:stop]
            found.append(
                {
                    "from": int(start),
                    "to": int(stop) - 1,
                    "seen": float((here > 0).mean()),
                    "pairs": int(self.pairs[start:stop].sum()),
                    "share": float(here.mean()),
                    "least": float(here.min()),
                    "most": float(here.max()),
                    "whole_rows": float(self.whole_sequences[start:stop].mean()),
                }
            )
        return found


def measure(sequences: Iterable[tuple[np.ndarray, np.ndarray]], target: int) -> Coverage:
    """Count the pairs of every sequence.

    Args:
        sequences: position ids and document ids of each, both [t]. Positions rise strictly within a document; document
            id -1 is padding. A query attends to what stands before it in its document, and to itself.
        target: positions lie in 0 .. target - 1; 2 or more.

    Raises:
        ValueError: a position outside, or one that does not rise.
    """
    from scipy.signal import fftconvolve  # here: asking a command for help does not take so long

    pairs = np.zeros(target, np.int64)
    count = 0
    for position_ids, document_ids in sequences:
        count += 1
        positions, owners = np.asarray(position_ids), np.asarray(document_ids)
        for owner in np.unique(owners[owners >= 0]):
            own = positions[owners == owner]
            if own[0] < 0 or own[-1] >= target or (np.diff(own) < 1).any():
                raise ValueError(f"positions of a document must rise strictly within 0 .. {target - 1}")
            there = np.zeros(own[-1] - own[0] + 1)
            there[own - own[0]] = 1
            pairs[: len(there)] += np.rint(fftconvolve(there, there[::-1])[len(there) - 1 :]).astype(np.int64)
    return Coverage(pairs, count)
