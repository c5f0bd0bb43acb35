"""Sequence parallelism by all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv:2309.14509), for every encoding.

DeepSpeed's own wrapper for transformers replaces an attention function for the whole process, and needs keys and values
of one shape. Here a value may be wider than its key, so that TAPE's position state travels with it, and nothing outside
the given model is touched.

In a layer, a process sends and receives two messages: queries, keys and values of its tokens for those of its heads,
and attention's output back. Per token of a sequence and byte of an element that is ``2 H K + 2 G K`` for RoPE, and at
most 1.5 times as much for TAPE, whose value and output are twice as wide. Where there are fewer key/value heads than
processes, each sends a head to every process that reads it.

Shape letters: those of :mod:`tape_ds.models.sharding`, and P processes, C columns of a head.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.distributed.group import GroupShards, RankGroup
from tape_ds.distributed.layout import Layout, check_heads
from tape_ds.errors import raise_if_any


def use_sequence_parallel(
    model: nn.Module, layout: Layout, rank: int, timeout: timedelta | None = None
) -> None:
    """Have ``model`` share the sequences of its training forwards with the processes of this one's group.

    All processes of a group must then be given the same sequences, and call the model equally often; all processes of
    the job must call this function, in the same place. In evaluation mode the model is as it was.

    A process's loss is its part of the sequences' loss, and its gradients are parts too: the sum over the group is the
    loss, and the gradient, that one process would find. What averages gradients over all processes of the job therefore
    gives the mean over groups when losses are multiplied by the size of a group.

    ``model`` may be what wraps it, such as peft's; the job's process group exists. Raises UserError if its heads cannot
    be divided among the processes, ValueError if it has no decoder that shares sequences.
    """
    decoders: list[Any] = [
        module for module in model.modules() if hasattr(module, "sequence_sharding")
    ]
    if not decoders:
        raise ValueError(f"{type(model).__name__} has no decoder that could share sequences")
    for decoder in decoders:
        config = decoder.config
        key_value_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        raise_if_any(
            list(check_heads(config.num_attention_heads, key_value_heads, layout.sequence))
        )
    share = ShareTokens(RankGroup.of(layout, rank, timeout))
    for decoder in decoders:
        decoder.sequence_sharding = share
        for layer in decoder.layers:
            layer.self_attn.attend = functools.partial(attend_over_heads, layer.self_attn.attend)


@dataclass(frozen=True)
class ShareTokens:
    """Shares a decoder's sequences with a group; see :class:`tape_ds.models.sharding.SequenceSharding`."""

    group: RankGroup
    always = caches = False

    def __call__(self, tokens: int) -> "UlyssesShards":
        return UlyssesShards(self.group, tokens)


class UlyssesShards(GroupShards):
    splits_sequences = True

    def to_heads(self, *tensors_BHtK: Tensor) -> list[Tensor]:
        """[B, H, t, K] of this process's tokens -> [B, h, T, K] of its heads, all of them in one message.

        The first are the queries; query head i reads key/value head i // (h / g).
        """
        size = self.group.size
        shapes = []
        parts = []
        for x_BXtC in tensors_BHtK:
            # several processes read one key/value head
            copies = size // x_BXtC.shape[1]
            if copies > 1:
                x_BXtC = x_BXtC.repeat_interleave(copies, dim=1)
            shapes.append((x_BXtC.shape[1] // size, x_BXtC.shape[3]))
            # [B, H, t, C] -> [P, B, t, h C]: heads of a process together, so that tensors can be one message
            parts.append(x_BXtC.unflatten(1, (size, -1)).permute(1, 0, 3, 2, 4).flatten(3))
        whole_BTC = self.join(self.group.swap(torch.cat(parts, dim=-1)), dim=1)
        pieces = whole_BTC.split([heads * width for heads, width in shapes], dim=-1)
        return [
            x.unflatten(-1, shape).transpose(1, 2) for x, shape in zip(pieces, shapes, strict=True)
        ]


def attend_over_heads(
    attend: Callable[..., tuple[Tensor, Tensor | None, Tensor | None]],
    q_BHtK: Tensor,
    k_BGtK: Tensor,
    values: list[Tensor],
    carried_BGtC: Tensor | None,
    inputs: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """:meth:`tape_ds.models.llama.TapeAttention.attend` between two exchanges: this process's tokens of all heads for
    all tokens of its heads, and back."""
    shards = inputs.shards
    if not isinstance(shards, UlyssesShards):
        return attend(q_BHtK, k_BGtK, values, carried_BGtC, inputs)
    width = values[0].shape[-1]
    v_BGtV = torch.cat(values, dim=-1) if len(values) > 1 else values[0]
    inputs = inputs._replace(heads=shards.local_heads(q_BHtK.shape[1]))
    q_BhTK, k_BgTK, v_BgTV = shards.to_heads(q_BHtK, k_BGtK, v_BGtV)
    carried_BgTC = None if carried_BGtC is None else v_BgTV[..., width:]
    out_BhTK, attended_BhTC, weights = attend(q_BhTK, k_BgTK, [v_BgTV], carried_BgTC, inputs)
    if attended_BhTC is None:
        return shards.all_heads(out_BhTK), None, weights
    both_BHtV = shards.all_heads(torch.cat((out_BhTK, attended_BhTC), dim=-1))
    out_BHtK, attended_BHtC = both_BHtV.split((width, both_BHtV.shape[-1] - width), dim=-1)
    return out_BHtK, attended_BHtC, weights
