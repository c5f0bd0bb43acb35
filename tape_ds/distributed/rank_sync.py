"""What all ranks of a job tell each other outside of the model: a few numbers at every step, a decision now and then.

Gradients go over the backend of the devices; this goes over gloo, from the CPU, so that it neither waits for a GPU nor
stands in the way of its collectives.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch import distributed

_groups: dict[Any, Any] = {}  # by the job's process group: one mesh of sockets for a job


def join(timeout: timedelta | None = None) -> Any:
    """Return the gloo group of all ranks, made by the first call, which all ranks must do together.

    Args:
        timeout: of a collective; None: gloo's own, half an hour.
    """
    world = distributed.group.WORLD
    if world not in _groups:
        is_gloo = distributed.get_backend() == "gloo"
        _groups[world] = world if is_gloo else distributed.new_group(backend="gloo", timeout=timeout)
    return _groups[world]


class RankSync:
    """The ranks of the job; a job of one process needs no process group. Every method must be called by all ranks."""

    @cached_property
    def world(self) -> int:
        """Number of ranks."""
        return distributed.get_world_size() if distributed.is_initialized() else 1

    @cached_property
    def rank(self) -> int:
        """This one's number."""
        return distributed.get_rank() if distributed.is_initialized() else 0

    @cached_property
    def _group(self) -> Any:
        return join()

    def numbers(self, own: Sequence[float]) -> list[list[float]]:
        """Return every rank's numbers, by rank; all ranks give equally many."""
        mine = torch.tensor(own, dtype=torch.float64)
        if self.world == 1:
            return [mine.tolist()]
        found = [torch.empty_like(mine) for _ in range(self.world)]
        distributed.all_gather(found, mine, group=self._group)
        return [each.tolist() for each in found]

    def objects(self, own: Any) -> list[Any]:
        """Return every rank's object, by rank; pickled on the way."""
        if self.world == 1:
            return [own]
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, own, group=self._group)
        return found

    def any(self, own: str | None) -> str | None:
        """Return what some rank says, the lowest that says anything; None where none does."""
        return next((text for text in self.objects(own) if text is not None), None)

    def first(self, own: Any) -> Any:
        """Rank 0's object, on every rank."""
        if self.world == 1:
            return own
        held = [own]
        distributed.broadcast_object_list(held, src=0, group=self._group)
        return held[0]
