"""How many tokens a target really has before it, and weights that follow from that (EXACT).

A packed sequence is long, but a target sees its own document alone: most targets have a short left context. EXACT (Zhu
et al. 2026, arXiv:2605.10544) measures how often each length of context occurs, in logarithmic buckets, and gives
targets in the tail, those with a long context, a fixed extra weight, shared among the tail's buckets by inverse
frequency. With F_k the targets in bucket k of the tail, F those in all of it, and K buckets that have any, a weight is

    1 + extra * F / (K * F_k)    in the tail,    1    before it,

so every bucket has the same part of the extra weight, and a target of the tail has ``extra`` of it in the mean. The
published text was not at hand beyond its summary: where the tail begins, the ratio of a bucket's ends and ``extra`` are
settings, and the formula is this project's reading.

The left context of a target is the tokens of its document that precede it in the sequence. PoSE's jumps of positions
add nothing to it, and a document that packing has cut begins again.

Shape letters: B batch, T tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape_ds.data.order import IGNORED, RunSamples
from tape_ds.errors import Problem, UserError
from tape_ds.numbers import NOT_AVAILABLE

MEASURED = 256
"""Samples at a run's beginning whose targets are counted. They are a function of the seed and the data alone, so every
process and every resumed run finds the same weights."""

BELOW = 5
"""Buckets before the tail that a histogram shows apart."""


def left_context(documents_BT: Tensor) -> Tensor:
    """Return for each token how many tokens of its document precede it in its sequence, int64 [B, T]; a document is in
    one piece."""
    begins_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    begins_BT[:, 1:] = documents_BT.diff(dim=1) != 0
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    first_BT = torch.where(begins_BT, places_T, 0).cummax(dim=1).values
    return places_T - first_BT


def contexts_of(item: Mapping[str, Tensor]) -> np.ndarray:
    """Return the left context of each target of a sample, int64 [targets]."""
    context_T = left_context(item["document_ids"][None])[0]
    return context_T[item["labels"] != IGNORED].numpy()


@dataclass(frozen=True)
class Buckets:
    """Logarithmic buckets: the tail's begin at ``tail`` tokens of context, and the last token of each is just below
    ``ratio`` times its first."""

    tail: int
    ratio: float

    def edges(self, most: int) -> np.ndarray:
        """Return the first context of each bucket of the tail up to one that holds ``most``, fp64 [buckets]."""
        edges = [float(self.tail)]
        while edges[-1] * self.ratio <= most:
            edges.append(edges[-1] * self.ratio)
        return np.array(edges)

    def all_edges(self, most: int) -> np.ndarray:
        """Return :meth:`edges` with :data:`BELOW` of the same ratio before the tail, and 0 first."""
        below = [self.tail / self.ratio**power for power in range(BELOW, 0, -1)]
        return np.array([0.0, *[edge for edge in below if edge > 1], *self.edges(most)])


@dataclass(frozen=True)
class Histogram:
    """Targets by their left context."""

    edges: np.ndarray
    """First context of each bucket, fp64 [buckets], rising; the first is 0."""
    counts: np.ndarray
    """Targets in each, fp64 [buckets]; of mixed sources in the proportion of their shares."""
    longest: int
    """The longest context of a target."""

    @classmethod
    def of(cls, contexts: Iterable[tuple[np.ndarray, float]], buckets: Buckets) -> "Histogram":
        """Count contexts, int64 [targets], each of which counts as often as the number next to its array says."""
        arrays = [(array, part) for array, part in contexts if len(array)]
        longest = max((int(array.max()) for array, _ in arrays), default=0)
        edges = buckets.all_edges(longest)
        counts = np.zeros(len(edges))
        for array, part in arrays:
            found = np.searchsorted(edges, array, side="right") - 1
            counts += part * np.bincount(found, minlength=len(edges))
        return cls(edges, counts, longest)

    def __str__(self) -> str:
        if not self.counts.sum():
            return NOT_AVAILABLE
        shares = self.counts / self.counts.sum()
        parts = []
        for number, share in enumerate(shares):
            if share:
                parts.append(f"{_span(self.edges, number)} {share:.1%}")
        return f"{', '.join(parts)} (the longest: {self.longest:,})"


def _span(edges: np.ndarray, number: int) -> str:
    """Return the contexts of a bucket in words; an edge between two whole numbers is rounded up, as contexts are."""
    first = int(np.ceil(edges[number]))
    if number + 1 == len(edges):
        return f"from {first:,}"
    return f"{first:,} to {int(np.ceil(edges[number + 1])) - 1:,}"


@dataclass(frozen=True)
class ExactWeights:
    """Weights of targets by their left context."""

    edges: np.ndarray
    """First context of each bucket of the tail, fp64 [buckets]."""
    weights: np.ndarray
    """Weight of each, fp64 [buckets]."""
    histogram: Histogram
    samples: int
    """Samples that were counted."""

    @classmethod
    def measured(
        cls, histogram: Histogram, buckets: Buckets, extra: float, samples: int
    ) -> "ExactWeights":
        """Return the weights that follow from counted targets. A bucket of the tail in which none was counted has the
        largest weight of the others. Raises UserError: no target is in the tail."""
        in_tail = histogram.edges >= buckets.tail
        edges = histogram.edges[in_tail]
        counts = histogram.counts[in_tail]
        if not counts.sum():
            wrong = f"no target of the first {samples:,} sequences has so many tokens of its document before it "
            wrong += f"(the longest: {histogram.longest:,})"
            remedy = "name longer documents"
            if histogram.longest > 1:
                remedy = f"give {histogram.longest // 2} or less, or name longer documents"
            raise UserError(Problem("exact_tail", buckets.tail, wrong, remedy))
        occupied = counts > 0
        weights = np.zeros(len(counts))
        weights[occupied] = 1 + extra * counts.sum() / (occupied.sum() * counts[occupied])
        weights[~occupied] = weights.max()
        return cls(edges, weights, histogram, samples)

    def __call__(self, documents_BT: Tensor) -> Tensor:
        """Return the weight of each token as a target, fp32 [B, T]."""
        context_BT = left_context(documents_BT)
        bucket_BT = torch.bucketize(context_BT.double(), torch.from_numpy(self.edges), right=True)
        table = torch.from_numpy(np.concatenate(([1.0], self.weights))).float()
        return table[bucket_BT]

    def described(self) -> str:
        """Return the weight of each bucket in words."""
        parts = [f"below {self.edges[0]:,.0f} x1"]
        for number, weight in enumerate(self.weights):
            parts.append(f"{_span(self.edges, number)} x{weight:.3g}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.histogram}, in the first {self.samples:,} sequences; weights: {self.described()}"


def measure(sequences: RunSamples | Any, buckets: Buckets) -> tuple[Histogram, int]:
    """Return how long the left contexts of a run's first :data:`MEASURED` samples are, and how many these are."""
    samples = min(MEASURED, len(sequences))
    contexts = ((contexts_of(sequences[index]), 1.0) for index in range(samples))
    return Histogram.of(contexts, buckets), samples
