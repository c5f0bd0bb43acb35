"""Which relative distances a run's rows show the model, and how often.

The distance of a query to a key is the difference of their positions. A row of ``T`` tokens with positions 0 .. T - 1
has ``T - d`` pairs at distance ``d``; PoSE's rows have the pairs within each chunk, and between chunks those that its
skips make. A distance that no pair had is one that the model has to meet untrained.

Counts are exact. A row is a few runs of consecutive positions. Between a run of ``l`` positions from ``a`` and one of
``m`` from ``b``, the number of pairs is a trapezoid over the distance, and the second difference of a trapezoid is four
numbers. So a row of N runs costs about 2 N^2 additions, whatever its length, and two running sums at the end turn them
into counts.
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
    rows: int
    """Rows that were counted."""

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
    def whole_rows(self) -> np.ndarray:
        """float64 [target]: the same of rows of ``target`` tokens from one document, the most that any row can have."""
        return 1 - np.arange(self.target) / self.target

    def summary(self, start: int = 1) -> dict[str, Any]:
        """What was seen of the distances ``start`` .. target - 1.

        ``seen`` is the share of these distances that occurred at all; ``least`` and ``median`` say how many pairs a
        distance had, and ``least_share`` and ``median_share`` how many pairs a query.

        Raises:
            ValueError: there is no such distance.
        """
        if not 1 <= start < self.target:
            raise ValueError(f"start = {start}: not a distance from 1 to {self.target - 1}")
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
        mean ``share`` of queries, the ``least`` and the ``most`` of one distance, and what ``whole_rows`` would have.
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
                    "whole_rows": float(self.whole_rows[start:stop].mean()),
                }
            )
        return found


def measure(rows: Iterable[tuple[np.ndarray, np.ndarray]], target: int) -> Coverage:
    """Count the pairs of every row.

    Args:
        rows: position ids and document ids of each, both [t]. Positions rise strictly within a document; document id
            -1 is padding. A query attends to what stands before it in its document, and to itself.
        target: positions lie in 0 .. target - 1; 2 or more.

    Raises:
        ValueError: a position outside, or one that does not rise; no row.
    """
    curvature = np.zeros(2 * target + 2, np.int64)  # second difference of the counts, distance d at target + d
    count = 0
    for position_ids, document_ids in rows:
        count += 1
        for starts, lengths in _runs(np.asarray(position_ids), np.asarray(document_ids), target):
            _add(curvature, target, starts, lengths)
    if count == 0:
        raise ValueError("no row to measure")
    return Coverage(np.cumsum(np.cumsum(curvature))[target : 2 * target], count)


def _runs(positions: np.ndarray, owners: np.ndarray, target: int) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """First position and length of each run of consecutive positions, both [n], document by document."""
    for owner in np.unique(owners[owners >= 0]):
        own = positions[owners == owner]
        steps = np.diff(own)
        if own[0] < 0 or own[-1] >= target or (steps < 1).any():
            raise ValueError(f"positions of a document must rise strictly within 0 .. {target - 1}")
        borders = np.flatnonzero(steps > 1) + 1
        first = np.concatenate([[0], borders])
        yield own[first], np.diff(np.concatenate([first, [len(own)]]))


def _add(curvature: np.ndarray, zero: int, starts: np.ndarray, lengths: np.ndarray) -> None:
    """Add the pairs of every run with itself and with the runs before it.

    A run with itself gives a trapezoid that is symmetric about distance 0: its left half lies at negative distances,
    which no other pair has, and is cut off at the end.
    """
    late, early = np.tril_indices(len(starts))
    left = zero + starts[late] - starts[early] - lengths[early] + 1
    for place, sign in (
        (left, 1),
        (left + lengths[early], -1),
        (left + lengths[late], -1),
        (left + lengths[early] + lengths[late], 1),
    ):
        np.add.at(curvature, place, sign)
