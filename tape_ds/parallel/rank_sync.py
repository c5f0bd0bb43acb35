"""What all ranks of a job tell each other outside of the model: a few numbers at every step, a decision now and then.

Gradients go over the backend of the devices; this goes over gloo, from the CPU, so that it neither waits for a GPU nor
stands in the way of its collectives.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import distributed


@lru_cache(maxsize=1)  # a mesh of sockets: one for a job
def _gloo_group(world: Any) -> Any:
    return world if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")


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
        return _gloo_group(distributed.group.WORLD)

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
