"""How TAPE's position state is updated: one pair of small modules for each form of the update.

The paper's form (``tensorial``) acts across heads and is the same for every channel, which keeps the state equivariant:
rotating all tokens' states by one angle rotates their updates too. The others are its ablations (paper, Table 6) and
give that up: ``separate`` has separate matrices for cosines and sines, ``vector`` acts across channels instead of
heads, ``flattened`` across both at once.

A layer ends with one call of its form's ``update``: the attended state [B, H, T, C] joins the state [B, G, T, C], and
the feed-forward, gated by the MLP's output, acts on the sum. Both start at zero.

Shape letters: B batch, T tokens, H query heads, G key/value heads, C columns of the state, X columns of one of its two
halves (cosines, sines), D hidden size, I rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.encodings import base
from tape_ds.encodings.options import ModelConfig
from tape_ds.kernels.pair_modulus import restore_modulus
from tape_ds.kernels.position_mix import position_mix


class Matrix(base.Weight):
    """Small matrix, an argument of an operator."""

    def forward(self) -> Tensor:
        """Return a copy: under ZeRO-3 only a module that is being called has its weights."""
        return self.weight.clone()


def local_heads(groups: int, heads: int, like: Tensor) -> Tensor:
    """[G, H]: 1 where a query head belongs to a group, else 0."""
    return torch.eye(groups, dtype=like.dtype, device=like.device).repeat_interleave(heads // groups, dim=1)


class HeadMix(Matrix):
    """``W_att`` [G, H]: a weighted sum over the query heads, the same for every channel."""

    def __init__(self, config: ModelConfig):
        super().__init__(config.num_key_value_heads, config.num_attention_heads, zero_init=True)


class HeadScale(base.Weight):
    """One scalar per query head [H], summed within each group of query heads."""

    def __init__(self, config: ModelConfig):
        super().__init__(config.num_attention_heads, zero_init=True)
        self.groups = config.num_key_value_heads

    def forward(self) -> Tensor:
        """As ``W_att`` [G, H]: the scalar of each head in the row of its group."""
        return local_heads(self.groups, len(self.weight), self.weight) * self.weight


class ChannelMix(base.Weight):
    """A matrix [X, X] across the channels of each half, of the mean over the query heads of a group."""

    def __init__(self, config: ModelConfig):
        super().__init__(config.head_dim, config.head_dim, zero_init=True)
        self.groups = config.num_key_value_heads

    def forward(self, attended_BHTC: Tensor) -> Tensor:
        mean = attended_BHTC.unflatten(1, (self.groups, -1)).mean(dim=2)
        return F.linear(mean.unflatten(-1, (2, -1)), self.weight).flatten(-2)


class ChannelScale(base.Weight):
    """One scalar per channel [X], the same in both halves, of the mean over the query heads of a group."""

    def __init__(self, config: ModelConfig):
        super().__init__(config.head_dim, zero_init=True)
        self.groups = config.num_key_value_heads

    def forward(self, attended_BHTC: Tensor) -> Tensor:
        mean = attended_BHTC.unflatten(1, (self.groups, -1)).mean(dim=2)
        return (mean.unflatten(-1, (2, -1)) * self.weight).flatten(-2)


class Separately(nn.Module):
    """Two of a kind, the first for the cosines, the second for the sines."""

    def __init__(self, make: Callable[[], nn.Module]):
        super().__init__()
        self.cos, self.sin = make(), make()


class Projection(base.Weight):
    """A bias-free linear map that is no ``nn.Linear``: adapters that target every linear layer must not wrap it."""

    def __init__(self, columns: int, rows: int, zero_init: bool = False):
        super().__init__(rows, columns, zero_init=zero_init)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Update(NamedTuple):
    attend: Any
    """Module of the attention update; None: off."""
    expand: Any
    """Module of W_up; None: no feed-forward."""
    contract: Any
    """Module of W_down."""
    start: Tensor
    """fp32 [B or 1, 1 or G, T, C]."""
    state: Tensor | None
    """The deviation from it [B, G, T, C]; None: zero."""
    moved: Tensor | None
    """What attention made of the state [B, H, T, C]."""
    gate: Tensor | None
    """[B, T, I], before its SiLU."""
    groups: int
    """G."""
    dtype: torch.dtype
    """Of the new deviation."""
    identity: bool
    """Whether the weight of the attention update is counted from the mean over each group's own heads."""
    unit: bool
    """Whether every pair (cos_j, sin_j) of the new state gets the modulus of its start back."""

    def halves(self) -> tuple[Update, Update]:
        return self._half(0, "cos"), self._half(1, "sin")

    def _half(self, at: int, name: str) -> Update:
        def own(module: Any) -> Any:
            return None if module is None else getattr(module, name)

        def columns(x: Tensor | None) -> Any:
            return None if x is None else x.chunk(2, dim=-1)[at]

        return self._replace(
            attend=own(self.attend),
            expand=own(self.expand),
            contract=own(self.contract),
            start=columns(self.start),
            state=columns(self.state),
            moved=columns(self.moved),
            unit=False,
        )


def across_heads(of: Update) -> Tensor:
    """``W_att``, then ``W_down diag(SiLU(g)) W_up``, by one fused operator."""
    attend, expand, contract = (None if module is None else module() for module in of[:3])
    if attend is not None and of.identity:
        groups, heads = attend.shape
        attend = attend + local_heads(groups, heads, attend) * (groups / heads)
    return position_mix(of.start, of.state, of.moved, attend, of.gate, expand, contract, dtype=of.dtype, unit=of.unit)


def across_heads_separately(of: Update) -> Tensor:
    return _finished(of, torch.cat([across_heads(half) for half in of.halves()], dim=-1))


def across_channels(of: Update) -> Tensor:
    """``W_down diag(SiLU(g)) W_up`` with W_up [I, X], on each half of each head's state."""

    def feed_forward(e_BGTC: Tensor, gate_BTI: Tensor) -> Tensor:
        inner_BGT2I = of.expand(e_BGTC.unflatten(-1, (2, -1))) * gate_BTI[:, None, :, None]
        return of.contract(inner_BGT2I).flatten(-2)

    return _step_by_step(of, of.attend, feed_forward)


def across_both(of: Update) -> Tensor:
    """``W_down diag(SiLU(g)) W_up`` with W_up [I, G X], on each half of the state of all heads."""

    def attend(attended_BHTC: Tensor) -> Tensor:
        return torch.matmul(of.attend(), attended_BHTC.flatten(2)).unflatten(2, attended_BHTC.shape[2:])

    def feed_forward(e_BGTC: Tensor, gate_BTI: Tensor) -> Tensor:
        flat_BT2X = e_BGTC.unflatten(-1, (2, -1)).permute(0, 2, 3, 1, 4).flatten(3)
        out_BT2X = of.contract(of.expand(flat_BT2X) * gate_BTI[:, :, None])
        return out_BT2X.unflatten(-1, (e_BGTC.shape[1], -1)).permute(0, 3, 1, 2, 4).flatten(-2)

    return _step_by_step(of, attend, feed_forward)


def _step_by_step(
    of: Update, attend: Callable[[Tensor], Tensor], feed_forward: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return an ablation's two updates in plain operations, each rounded separately."""
    state = of.state
    if of.moved is not None:
        state = _added(state, attend(of.moved), of.dtype)
    if of.gate is not None:
        e_BGTC = of.start if state is None else of.start + state
        e_BGTC = e_BGTC.to(of.gate.dtype).expand(len(of.gate), of.groups, -1, -1)
        state = _added(state, feed_forward(e_BGTC, F.silu(of.gate)), of.dtype)
    assert state is not None
    return _finished(of, state)


def _finished(of: Update, state: Tensor) -> Tensor:
    if not of.unit:
        return state
    return restore_modulus(of.start, state.to(torch.promote_types(state.dtype, of.start.dtype))).to(of.dtype)


def _added(state: Tensor | None, update: Tensor, dtype: torch.dtype) -> Tensor:
    return update.to(dtype) if state is None else (state + update).to(dtype)


class UpdateForm(NamedTuple):
    whole_halves: bool
    """Whether cosines and sines are stored K wide each. Where updates act on all channels alike, the two halves of a
    rotation stay identical for ever, and K/2 columns of each are the whole state."""
    mix: Callable[[ModelConfig], nn.Module]
    """Makes the attention update ``mix``."""
    scale: Callable[[ModelConfig], nn.Module]
    """Makes the attention update ``scale``."""
    channels: Callable[[ModelConfig], int]
    """Columns of W_up."""
    projection: Callable[..., base.Weight]
    """Makes W_up and W_down from (columns, rows, zero_init=...)."""
    update: Callable[[Update], Tensor]
    """The deviation [B, G, T, C] after the layer."""
    multiplications: Callable[[int, int, int], float]
    """Of the feed-forward per token, from (G, I, C)."""
    uses: Callable[[int, int], float]
    """How often each weight of the attention update is used per token, from (G, C)."""
    separate: bool = False
    """Whether W_up and W_down come twice."""

    def projections(self, config: ModelConfig, rank: int) -> tuple[nn.Module, nn.Module]:
        channels = self.channels(config)

        def expand() -> nn.Module:
            return self.projection(channels, rank, zero_init=True)

        def contract() -> nn.Module:
            return self.projection(rank, channels)

        return (Separately(expand), Separately(contract)) if self.separate else (expand(), contract())


def _matrix(columns: int, rows: int, zero_init: bool = False) -> Matrix:
    return Matrix(rows, columns, zero_init=zero_init)


def _head_cost(groups: int, rank: int, columns: int) -> float:
    return rank * groups**2 + groups**2 * columns


FORMS = {
    "tensorial": UpdateForm(
        False,
        HeadMix,
        HeadScale,
        lambda config: config.num_key_value_heads,
        _matrix,
        across_heads,
        multiplications=_head_cost,
        uses=lambda groups, columns: columns,
    ),
    "separate": UpdateForm(
        False,
        lambda config: Separately(lambda: HeadMix(config)),
        lambda config: Separately(lambda: HeadScale(config)),
        lambda config: config.num_key_value_heads,
        _matrix,
        across_heads_separately,
        multiplications=lambda groups, rank, columns: 2 * _head_cost(groups, rank, columns // 2),
        uses=lambda groups, columns: columns / 2,
        separate=True,
    ),
    "vector": UpdateForm(
        True,
        ChannelMix,
        ChannelScale,
        lambda config: config.head_dim,
        Projection,
        across_channels,
        multiplications=lambda groups, rank, columns: 2 * rank * groups * columns,
        uses=lambda groups, columns: 2 * groups,
    ),
    "flattened": UpdateForm(
        True,
        HeadMix,
        HeadScale,
        lambda config: config.num_key_value_heads * config.head_dim,
        Projection,
        across_both,
        multiplications=lambda groups, rank, columns: 2 * rank * groups * columns,
        uses=lambda groups, columns: columns,
    ),
}
