"""What loss by position comes to: a mean for each span of positions, stored, read back and put together."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class SpanLosses:
    """Mean negative log-likelihood per span of positions, and how many targets each mean is over."""

    span: int
    """Positions per span; the last one of a document may be shorter."""
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
        """Return mean over the targets of the spans that start in ``first .. last - 1`` (``last`` None: to the end).

        Raises:
            ValueError: no span starts there.
        """
        chosen = [
            (nll, count)
            for start, nll, count in zip(self.starts, self.nll, self.counts, strict=True)
            if start >= first and (last is None or start < last)
        ]
        if not chosen:
            raise ValueError(f"no span starts in {first} .. {last}: spans start at {self.starts}")
        return math.fsum(nll * count for nll, count in chosen) / sum(count for _, count in chosen)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the overall ``mean``."""
        return asdict(self) | {"mean": self.mean}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SpanLosses":
        """Return the inverse of :meth:`to_dict`; ``mean`` is derived again."""
        return cls(values["span"], tuple(values["starts"]), tuple(values["nll"]), tuple(values["counts"]))

    @classmethod
    def merge(cls, losses: Iterable["SpanLosses"]) -> "SpanLosses":
        """Several documents as one: each span's mean over the targets of all documents that reach it.

        Raises:
            ValueError: nothing to merge, or different spans.
        """
        all_losses = list(losses)
        if len({item.span for item in all_losses}) != 1:
            raise ValueError(f"losses to merge must share one span: {[item.span for item in all_losses]}")
        longest = max(all_losses, key=lambda item: len(item.starts))
        nll, counts = [], []
        for at in range(len(longest.starts)):
            here = [(item.nll[at], item.counts[at]) for item in all_losses if at < len(item.starts)]
            counts.append(sum(count for _, count in here))
            nll.append(math.fsum(value * count for value, count in here) / counts[-1])
        return cls(longest.span, longest.starts, tuple(nll), tuple(counts))
