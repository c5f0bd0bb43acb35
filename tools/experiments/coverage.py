"""Relative distances that a run's sequences contain, and how often.

The distance of a query to a key is the difference of their positions. A sequence of ``T`` tokens whose positions start
at 0 without gaps has ``T - d`` pairs at distance ``d``; PoSE's sequences have the pairs within each chunk, and between
chunks those that its skips make. A distance without a pair is one that the model is never trained on.

Counts are exact: within a document, the autocorrelation of its positions, by Fourier transform.
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

    @property
    def target(self) -> int:
        """Number of distances, 0 .. target - 1."""
        return len(self.pairs)

    @property
    def queries(self) -> int:
        return int(self.pairs[0])

    @property
    def share(self) -> np.ndarray:
        """float64 [target]: the share of queries that have a key at each distance."""
        return self.pairs / self.queries

    @property
    def whole_sequences(self) -> np.ndarray:
        """float64 [target]: the same of sequences of ``target`` tokens from one document, which is the maximum."""
        return 1 - np.arange(self.target) / self.target

    def summary(self, start: int = 1) -> dict[str, Any]:
        """Summarise the distances ``start`` .. target - 1: ``seen``, the share with at least one pair; ``least`` and
        ``median`` of the pairs of a distance, and the same divided by the queries."""
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
        """Return means over distances that grow by 2 ** (1 / per_octave) from bin to bin.

        Each bin has its distances ``from`` .. ``to``, the share of them ``seen``, the sum of their ``pairs``, the mean
        ``share`` of queries, the ``least`` and the ``most`` of one distance, and the mean of ``whole_sequences``.
        """
        octaves = np.arange(int(np.ceil(np.log2(self.target))) * per_octave + 1) / per_octave
        edges = np.unique(np.minimum(np.ceil(2.0**octaves).astype(np.int64), self.target))
        bins = []
        for start, stop in pairwise(edges):
            shares = self.share[start:stop]
            bins.append(
                {
                    "from": int(start),
                    "to": int(stop) - 1,
                    "seen": float((shares > 0).mean()),
                    "pairs": int(self.pairs[start:stop].sum()),
                    "share": float(shares.mean()),
                    "least": float(shares.min()),
                    "most": float(shares.max()),
                    "whole_rows": float(self.whole_sequences[start:stop].mean()),
                }
            )
        return bins


def measure(sequences: Iterable[tuple[np.ndarray, np.ndarray]], target: int) -> Coverage:
    """Count the pairs of every sequence.

    Args:
        sequences: position ids and document ids of each, both [t]. Positions rise strictly within a document; document
            id -1 is padding. A query attends to itself and to earlier tokens of its document.
        target: positions are in 0 .. target - 1; 2 or more.

    Raises:
        ValueError: a position outside, or one that does not rise.
    """
    from scipy.signal import fftconvolve  # here: --help does not wait for it

    pairs = np.zeros(target, np.int64)
    count = 0
    for position_ids, document_ids in sequences:
        count += 1
        positions, owners = np.asarray(position_ids), np.asarray(document_ids)
        for owner in np.unique(owners[owners >= 0]):
            own = positions[owners == owner]
            if own[0] < 0 or own[-1] >= target or (np.diff(own) < 1).any():
                raise ValueError(f"positions of a document must rise strictly within 0 .. {target - 1}")
            occupied = np.zeros(own[-1] - own[0] + 1)
            occupied[own - own[0]] = 1
            correlation = fftconvolve(occupied, occupied[::-1])[len(occupied) - 1 :]
            pairs[: len(occupied)] += np.rint(correlation).astype(np.int64)
    return Coverage(pairs, count)
