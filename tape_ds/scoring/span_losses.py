"""Mean loss for each span of positions, as results store it; without torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class SpanLosses:
    """Mean negative log-likelihood of each span of positions, and the number of targets of each mean."""

    span: int
    """Positions per span; the last span of a document may be shorter."""
    starts: tuple[int, ...]
    """First position of each span: 0, span, 2 span, ..."""
    nll: tuple[float, ...]
    """Mean loss of each span's targets, in nats per token."""
    counts: tuple[int, ...]
    """Targets in each span."""

    @property
    def mean(self) -> float:
        """Mean over all targets, in nats per token."""
        return self.mean_between(0)

    def mean_between(self, first: int, last: int | None = None) -> float:
        """Return the mean over the targets of the spans that start in ``first .. last - 1`` (None: to the end)."""
        sums = []
        targets = 0
        for start, nll, count in zip(self.starts, self.nll, self.counts, strict=True):
            # whole spans: one that an end cuts counts where it begins
            if start >= first and (last is None or start < last):
                sums.append(nll * count)
                targets += count
        if not sums:
            raise ValueError(f"no span starts in {first} .. {last}: spans start at {self.starts}")
        return math.fsum(sums) / targets

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"mean": self.mean}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SpanLosses":
        return cls(
            values["span"], tuple(values["starts"]), tuple(values["nll"]), tuple(values["counts"])
        )

    @classmethod
    def merge(cls, losses: Iterable["SpanLosses"]) -> "SpanLosses":
        """Average several documents: each span over the targets of all documents that reach it."""
        documents = list(losses)
        spans = [document.span for document in documents]
        if len(set(spans)) != 1:
            raise ValueError(f"losses to merge must share one span: {spans}")
        longest = max(documents, key=lambda document: len(document.starts))
        nll = []
        counts = []
        for at in range(len(longest.starts)):
            reaching = [document for document in documents if at < len(document.starts)]
            sums = [document.nll[at] * document.counts[at] for document in reaching]
            counts.append(sum(document.counts[at] for document in reaching))
            nll.append(math.fsum(sums) / counts[-1])
        return cls(longest.span, longest.starts, tuple(nll), tuple(counts))
