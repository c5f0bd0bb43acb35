"""The processes that work on the same sequences, and what they exchange; every exchange has its gradient.

Shape letters: those of :mod:`tape_ds.models.sharding`, and P processes.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from deepspeed import comm
from torch import Tensor, distributed
from torch.nn import functional as F

from tape_ds.distributed.layout import Layout
from tape_ds.models.sharding import Shards


@dataclass(frozen=True)
class RankGroup:
    """The processes that share sequences with this one."""

    handle: Any
    """torch's process group."""
    size: int
    index: int
    """This process's number among them."""
    first: int
    """Rank of the group's process 0."""

    @classmethod
    def of(cls, layout: Layout, rank: int, timeout: timedelta | None = None) -> "RankGroup":
        """Return the group of ``rank`` in the job's ``layout``; the first time it makes the process groups of all, so
        every process must call it. ``timeout`` of a collective; None: torch's own."""
        handles = _process_groups(layout, distributed.group.WORLD, timeout)
        own = layout.groups()[layout.data_rank(rank)]
        return cls(handles[layout.data_rank(rank)], layout.ways, own.index(rank), own[0])

    def swap(self, x: Tensor) -> Tensor:
        """Entry p of the first dimension goes to process p, and what comes from it takes its place; gradients go back
        the same way."""
        return _differentiable(x, self._swap, self._swap)

    def gather(self, x: Tensor) -> Tensor:
        """[...] of each process -> [P, ...] in all of them; a process's gradient is the sum of what all have of it."""
        return _differentiable(x, self._gather, self._reduce)

    def reduce(self, x: Tensor) -> Tensor:
        """[P, ...] -> [...]: entry p is summed over the processes for process p; its gradient goes to all of them."""
        return _differentiable(x, self._reduce, self._gather)

    def gather_alike(self, x: Tensor) -> Tensor:
        """:meth:`gather`, where all processes compute the same of what comes out: each has the whole gradient, and
        keeps its own part."""
        return _differentiable(x, self._gather, lambda gradient: gradient[self.index])

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes; not differentiable."""
        summed = x.detach().clone(memory_format=torch.contiguous_format)
        comm.all_reduce(summed, group=self.handle)
        return summed

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest of all processes, entry by entry; not differentiable."""
        largest = x.detach().clone(memory_format=torch.contiguous_format)
        comm.all_reduce(largest, op=comm.ReduceOp.MAX, group=self.handle)
        return largest

    def _swap(self, x: Tensor) -> Tensor:
        sent = x.contiguous()
        received = torch.empty_like(sent)
        comm.all_to_all_single(received, sent, group=self.handle)
        return received

    def _gather(self, x: Tensor) -> Tensor:
        gathered = x.new_empty((self.size, *x.shape))
        # torch wants the pieces end to end in their first dimension; a scalar has none
        flat = gathered.flatten(0, 1) if x.dim() else gathered
        comm.all_gather_into_tensor(flat, x.contiguous(), group=self.handle)
        return gathered

    def _reduce(self, x: Tensor) -> Tensor:
        summed = x.new_empty(x.shape[1:])
        comm.reduce_scatter_tensor(summed, x.contiguous().flatten(0, 1), group=self.handle)
        return summed


@functools.cache
def _process_groups(layout: Layout, world: Any, timeout: timedelta | None) -> list[Any]:
    # once for a process group `world`: each group holds connections and threads
    # adopts torch's process group
    comm.init_distributed(dist_backend=distributed.get_backend(), verbose=False)
    return [distributed.new_group(ranks, timeout=timeout) for ranks in layout.groups()]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forth: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None


def _differentiable(
    x: Tensor, forth: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> Tensor:
    exchanged: Tensor = _Differentiable.apply(x, forth, back)
    return exchanged


class GroupShards(Shards):
    """Sequences of ``tokens`` tokens shared by ``group``: a stretch for each process, equally long; the last ones are
    padded, and the padding never reaches attention."""

    def __init__(self, group: RankGroup, tokens: int):
        self.group = group
        self.tokens = tokens
        # t: T / P, rounded up
        self.each = -(-tokens // group.size)

    def local_tokens(self, x: Tensor, filling: int | None = None, dim: int = 1) -> Tensor:
        begin = min(self.group.index * self.each, self.tokens)
        own = x.narrow(dim, begin, min(self.each, self.tokens - begin))
        missing = self.each - own.shape[dim]
        if not missing:
            return own
        # padding looks like the last token, whose mask and position are valid ones
        tail = x.narrow(dim, self.tokens - 1, 1)
        if filling is not None:
            tail = torch.full_like(tail, filling)
        return torch.cat((own, *[tail] * missing), dim=dim)

    def local_heads(self, count: int) -> slice:
        """Return which of a model's ``count`` query heads are this process's."""
        own = count // self.group.size
        return slice(self.group.index * own, (self.group.index + 1) * own)

    def cut(self, x: Tensor, dim: int) -> Tensor:
        """Whole sequences -> [P, ...], a stretch for each process; 0 past the end."""
        missing = self.each * self.group.size - self.tokens
        if missing:
            x = F.pad(x, (*(0, 0) * (x.dim() - 1 - dim), 0, missing))
        return x.unflatten(dim, (self.group.size, -1)).movedim(dim, 0)

    def join(self, parts: Tensor, dim: int) -> Tensor:
        """The stretches [P, ...] of all processes -> whole sequences, without padding."""
        return parts.movedim(0, dim).flatten(dim, dim + 1).narrow(dim, 0, self.tokens)

    def all_heads(self, x_BhTC: Tensor) -> Tensor:
        """[B, h, T, C] -> [B, H, t, C]: this process's tokens, of every process's heads; 0 past the sequences' end."""
        return self.group.swap(self.cut(x_BhTC, dim=2)).movedim(0, 1).flatten(1, 2)

    def agree_on_draws(self, device: torch.device) -> None:
        # torch's CPU generator of the group's process 0
        state = torch.get_rng_state().to(device)
        comm.broadcast(state, src=self.group.first, group=self.group.handle)
        torch.set_rng_state(state.cpu())
