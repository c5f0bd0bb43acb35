"""``tape``: contextualised equivariant positional encoding (Zhu et al., ICML 2025, arXiv:2501.00712).

Each key/value head carries a position state ``e = [cos | sin]`` per token. It starts as RoPE's rotation; attention and
the feed-forward of every layer update it from content, and queries and keys are rotated by the current state.

What travels from layer to layer is the deviation ``d = e - start``, not ``e``: next to a cosine near 1, a bf16 number
cannot hold an update of 1e-3, next to 0 it can. ``e`` is formed where it is read.

Shape letters: B batch, T tokens, H query heads, G key/value heads (one state each), K head size, D hidden, I rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.errors import Problem
from tape_ds.kernels.reference import rotate
from tape_ds.model.positions import base
from tape_ds.model.positions.rope import RopeEncoding

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig


@dataclass(frozen=True)
class TapeOptions(base.Options):
    """Choices of TAPE and of its ablations."""

    attention_update: Literal["mix", "scale", "off"] = "mix"
    """How ``A e`` joins the state: ``mix`` by a matrix across heads (the paper's form), ``scale`` by one scalar per
    query head (what the published code computes), ``off`` not at all."""
    feed_forward: bool = True
    """Whether the position feed-forward updates the state."""
    rank: int | None = None
    """I, the inner width of the position feed-forward; None: 4 G."""

    def problems(self) -> list[Problem]:
        """A rank must be positive."""
        if self.rank is not None and self.rank < 1:
            return [Problem("position_options.rank", self.rank, "too small", "give at least 1, or null for 4 x heads")]
        return []


class HeadMix(nn.Module):
    """``W_att`` [G, H]: a weighted sum over the query heads, the same for every channel; zero at the start."""

    zero_init = True

    def __init__(self, config: TapeConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_key_value_heads, config.num_attention_heads))

    def forward(self, carried_BHTK: Tensor) -> Tensor:
        """[B, H, T, K] -> [B, G, T, K]."""
        mixed = torch.matmul(self.weight, carried_BHTK.flatten(2))
        return mixed.unflatten(2, carried_BHTK.shape[2:])


class HeadScale(nn.Module):
    """One scalar per query head [H], summed within each group of query heads; zero at the start."""

    zero_init = True

    def __init__(self, config: TapeConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_attention_heads))
        self.groups = config.num_key_value_heads

    def forward(self, carried_BHTK: Tensor) -> Tensor:
        """[B, H, T, K] -> [B, G, T, K]."""
        scaled = self.weight[:, None, None] * carried_BHTK
        return scaled.unflatten(1, (self.groups, -1)).sum(dim=2)


class Projection(nn.Module):
    """A bias-free linear map that is no ``nn.Linear``: adapters that target every linear layer must not wrap it."""

    def __init__(self, columns: int, rows: int, zero_init: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))
        self.columns = columns
        self.zero_init = zero_init

    def forward(self, x: Tensor) -> Tensor:
        """[..., columns] -> [..., rows]."""
        return F.linear(x, self.weight)

    def transposed_weight(self) -> Tensor:
        """The weight [columns, rows], read through ``forward``: where an engine shards parameters, only a module that
        is being called holds its own."""
        return self(torch.eye(self.columns, dtype=self.weight.dtype, device=self.weight.device))


class TapeEncoding(RopeEncoding):
    """The start of the state is RoPE's rotation, scaled as ``rope_parameters`` say."""


class TapeLayer(base.PositionLayer):
    """Rotation by the current state, and its two updates.

    The last layer's update would never be read: it has no parameters and carries nothing.
    """

    attend: HeadMix | HeadScale | None
    gate: Projection | None
    expand: Projection
    contract: Projection

    def __init__(self, config: TapeConfig, options: TapeOptions, layer_index: int):
        super().__init__()
        groups = config.num_key_value_heads
        self.state_dtype = getattr(torch, config.state_dtype) if config.state_dtype else None
        self.heads, self.groups, self.width = config.num_attention_heads, groups, config.head_dim
        last = layer_index == config.num_hidden_layers - 1
        self.attend = None
        self.gate = None
        if not last and options.attention_update != "off":
            self.attend = HeadMix(config) if options.attention_update == "mix" else HeadScale(config)
        if not last and options.feed_forward:
            rank = options.rank or 4 * groups
            self.gate = Projection(config.hidden_size, rank)
            self.expand = Projection(groups, rank, zero_init=True)
            self.contract = Projection(rank, groups)

    def rotate(self, q_BHTK: Tensor, k_BGTK: Tensor, start: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Query head h and key head g by the state of their group."""
        e_BGTK = current(start, state)
        return rotate(q_BHTK, e_BGTK), rotate(k_BGTK, e_BGTK)

    def carry(self, start: Tensor, state: Tensor | None, like: Tensor) -> Tensor | None:
        """The state itself, so that one softmax gives ``A v`` and ``A e``."""
        if self.attend is None:
            return None
        return current(start, state).to(like.dtype).expand(like.shape[0], like.shape[1], -1, -1)

    def after_attention(self, state: Tensor | None, carried_BHTC: Tensor | None) -> Tensor | None:
        """``e += W_att (A e)``."""
        if self.attend is None or carried_BHTC is None:
            return state
        return self._add(state, self.attend(carried_BHTC))

    def after_mlp(self, start: Tensor, state: Tensor | None, y_BTD: Tensor) -> Tensor | None:
        """``e += W_down diag(SiLU(W_x y)) W_up e``, as one G x G matrix per token: nothing of [B, I, T, K] exists."""
        if self.gate is None:
            return state
        gate_BTI = F.silu(self.gate(y_BTD))
        up_GI, down_IG = self.expand.transposed_weight(), self.contract.transposed_weight()
        # product_I(gh)[i, g * G + h] = W_down[g, i] W_up[i, h]
        product_IX = (down_IG[:, :, None] * up_GI.T[:, None, :]).flatten(1)
        matrix_BTGG = (gate_BTI @ product_IX).unflatten(-1, (down_IG.shape[1], up_GI.shape[0]))
        e_BGTK = current(start, state).to(y_BTD.dtype)
        e_BGTK = e_BGTK.expand(y_BTD.shape[0], up_GI.shape[0], -1, -1)
        return self._add(state, torch.einsum("btgh,bhtk->bgtk", matrix_BTGG, e_BGTK))

    def state_columns(self) -> int:
        """One state, as wide as the head, per key/value head."""
        return self.groups * self.width

    def multiplications_per_token(self, length: int) -> float:
        """A second value in attention; the gate, one G x G matrix per token and its application to the state."""
        count = 0.0
        if self.attend is not None:
            count += self.width * self.heads * length / 2 + self.attend.weight.numel() * self.width
        if self.gate is not None:
            rank, groups = self.expand.weight.shape
            count += self.gate.weight.numel() + rank * groups**2 + groups**2 * self.width
        return count

    def _add(self, state: Tensor | None, update: Tensor) -> Tensor:
        update = update if self.state_dtype is None else update.to(self.state_dtype)
        return update if state is None else state + update


def current(start_B1TK: Tensor, state: Tensor | None) -> Tensor:
    """``e`` in fp32 [B, G or 1, T, K] from the shared start and the deviation."""
    return start_B1TK if state is None else start_B1TK + state
