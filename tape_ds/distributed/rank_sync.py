"""Exchange a few numbers or objects between all ranks, from the CPU.

Gradients use the devices' backend; this uses gloo, which neither waits for a GPU nor delays its collectives.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch import distributed

# by the job's process group: each gloo group is a full mesh of sockets
_groups: dict[Any, Any] = {}


def join(timeout: timedelta | None = None) -> Any:
    """Return the gloo group of all ranks, which must make the first call together; default ``timeout``: gloo's, half an
    hour."""
    world = distributed.group.WORLD
    if world not in _groups:
        group = world
        if distributed.get_backend() != "gloo":
            group = distributed.new_group(backend="gloo", timeout=timeout)
        _groups[world] = group
    return _groups[world]


class RankSync:
    """The ranks of the job; a single process needs no process group. All ranks must call every method."""

    @cached_property
    def world(self) -> int:
        return distributed.get_world_size() if distributed.is_initialized() else 1

    @cached_property
    def rank(self) -> int:
        return distributed.get_rank() if distributed.is_initialized() else 0

    def numbers(self, own: Sequence[float]) -> list[list[float]]:
        """Return every rank's numbers, by rank; all ranks give the same count."""
        numbers = torch.tensor(own, dtype=torch.float64)
        if self.world == 1:
            return [numbers.tolist()]
        gathered = [torch.empty_like(numbers) for _ in range(self.world)]
        distributed.all_gather(gathered, numbers, group=join())
        return [each.tolist() for each in gathered]

    def objects(self, own: Any) -> list[Any]:
        """Return every rank's object, by rank; they are pickled."""
        if self.world == 1:
            return [own]
        gathered: list[Any] = [None] * self.world
        distributed.all_gather_object(gathered, own, group=join())
        return gathered

    def any(self, own: str | None) -> str | None:
        """Return the text of the lowest rank that has one."""
        return next((text for text in self.objects(own) if text is not None), None)

    def first(self, own: Any) -> Any:
        """Return rank 0's object on every rank."""
        if self.world == 1:
            return own
        objects = [own]
        distributed.broadcast_object_list(objects, src=0, group=join())
        return objects[0]
