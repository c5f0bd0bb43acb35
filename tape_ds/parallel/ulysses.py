"""Sequence parallelism by all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv:2309.14509), for every encoding.

DeepSpeed's own wrapper for transformers replaces an attention function for the whole process, and wants keys and values
of one shape. Here a value may be wider than its key, so that TAPE's position state travels with it, and nothing outside
the model that is given is touched.

In a layer, a process sends and receives two messages: queries, keys and values of its tokens for those of its heads,
and attention's output back. Per token of a row and byte of an element that is ``2 H K + 2 G K`` for RoPE, and at most
1.5 times as much for TAPE, whose value and output are twice as wide. Where there are fewer key/value heads than
processes, each sends a head to every process that reads it.

Shape letters: those of :mod:`tape_ds.model.sharding`, and P processes, C columns of a head.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed import comm
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from tape_ds.errors import raise_if_any
from tape_ds.parallel.layout import Layout, check_heads


def use_sequence_parallel(model: nn.Module, layout: Layout, rank: int) -> None:
    """Have ``model`` share the rows of its training forwards with the processes of this one's group.

    All processes of a group must then be given the same rows, and call the model equally often; all processes of the
    job must call this function, in the same place. In evaluation mode the model is as it was.

    A process's loss is its part of the rows' loss, and its gradients are parts too: the sum over the group is the loss,
    and the gradient, that one process would find. What averages gradients over all processes of the job therefore
    gives the mean over groups when losses are multiplied by the size of a group.

    Args:
        model: or what wraps it, such as peft's.
        layout: of the job, whose process group exists.
        rank: of this process.

    Raises:
        UserError: its heads cannot be shared by so many processes.
        ValueError: it has no decoder that shares rows.
    """
    decoders: list[Any] = [module for module in model.modules() if hasattr(module, "share_rows")]
    if not decoders:
        raise ValueError(f"{type(model).__name__} has no decoder that could share rows")
    for decoder in decoders:
        config = decoder.config
        key_value_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        raise_if_any(list(check_heads(config.num_attention_heads, key_value_heads, layout.sequence)))
    group = Group.of(layout, rank)
    for decoder in decoders:
        decoder.share_rows = group.share


@dataclass(frozen=True)
class Group:
    """The processes that share rows with this one."""

    handle: Any
    """torch's process group."""
    size: int
    index: int
    """This process's number among them."""
    first: int
    """Rank of the group's process 0."""

    @classmethod
    def of(cls, layout: Layout, rank: int) -> "Group":
        """The group of ``rank``; the first time it makes the process groups of all, so every process must call it."""
        handles = _process_groups(layout, distributed.group.WORLD)
        own = layout.sequence_groups()[layout.data_rank(rank)]
        return cls(handles[layout.data_rank(rank)], layout.sequence, own.index(rank), own[0])

    def share(self, tokens: int) -> "UlyssesShards":
        """How rows of so many tokens are shared."""
        return UlyssesShards(self, tokens)


@functools.cache
def _process_groups(layout: Layout, world: Any) -> list[Any]:
    """Of each group of the layout; once for a process group ``world``, since each holds connections and threads."""
    comm.init_distributed(dist_backend=distributed.get_backend(), verbose=False)  # adopts torch's process group
    return [comm.new_group(ranks) for ranks in layout.sequence_groups()]


@dataclass(frozen=True)
class UlyssesShards:
    """Rows of ``tokens`` tokens in equal stretches, the last ones filled up with padding that never reaches attention.

    Methods are those of :class:`tape_ds.model.sharding.Shards`.
    """

    group: Group
    tokens: int

    @property
    def own_tokens(self) -> int:
        """t: T / P, rounded up."""
        return -(-self.tokens // self.group.size)

    def mine(self, x: Tensor, filling: int | None = None) -> Tensor:
        """This process's tokens, and ``filling`` (None: the row's last token) for those behind the end."""
        begin = min(self.group.index * self.own_tokens, self.tokens)
        own = x[:, begin : min(begin + self.own_tokens, self.tokens)]
        missing = self.own_tokens - own.shape[1]
        if not missing:
            return own
        last = x[:, self.tokens - 1 : self.tokens]
        tail = last if filling is None else torch.full_like(last, filling)
        return torch.cat((own, tail.expand(-1, missing, *tail.shape[2:])), dim=1)

    def heads(self, count: int) -> slice:
        """Consecutive ones."""
        own = count // self.group.size
        return slice(self.group.index * own, (self.group.index + 1) * own)

    def to_heads(self, q_BHtK: Tensor, k_BGtK: Tensor, v_BGtV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All three in one message."""
        size = self.group.size
        copies = max(1, size // k_BGtK.shape[1])
        by_head = (q_BHtK, *(x.repeat_interleave(copies, dim=1) if copies > 1 else x for x in (k_BGtK, v_BGtV)))
        shapes = [(x.shape[1] // size, x.shape[3]) for x in by_head]
        parts = [x_BXtC.unflatten(1, (size, -1)).permute(1, 0, 3, 2, 4).flatten(3) for x_BXtC in by_head]
        received_PBtC = _swap(torch.cat(parts, dim=-1), self.group)
        whole_BTC = received_PBtC.transpose(0, 1).flatten(1, 2)[:, : self.tokens]
        pieces = whole_BTC.split([heads * width for heads, width in shapes], dim=-1)
        q, k, v = (x.unflatten(-1, shape).transpose(1, 2) for x, shape in zip(pieces, shapes, strict=True))
        return q, k, v

    def to_tokens(self, out_BhTV: Tensor) -> Tensor:
        """All heads of this process's tokens."""
        missing = self.own_tokens * self.group.size - self.tokens
        padded_BhTV = F.pad(out_BhTV, (0, 0, 0, missing)) if missing else out_BhTV
        parts_PBthV = padded_BhTV.unflatten(2, (self.group.size, -1)).permute(2, 0, 3, 1, 4)
        received_PBthV = _swap(parts_PBthV, self.group)
        return received_PBthV.permute(1, 0, 3, 2, 4).flatten(1, 2)

    def agree_on_draws(self, device: torch.device) -> None:
        """Take over the generator of the group's process 0."""
        state = torch.get_rng_state().to(device)
        comm.broadcast(state, src=self.group.first, group=self.group.handle)
        torch.set_rng_state(state.cpu())


class _AllToAll(torch.autograd.Function):
    """Entry p of the first dimension goes to process p of the group, and what comes from it takes its place; gradients
    go back the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _all_to_all(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradients[0], ctx.group), None


def _swap(x: Tensor, group: Group) -> Tensor:
    swapped: Tensor = _AllToAll.apply(x, group.handle)
    return swapped


def _all_to_all(x: Tensor, group: Any) -> Tensor:
    sent = x.contiguous()
    received = torch.empty_like(sent)
    comm.all_to_all_single(received, sent, group=group)
    return received
