"""How TAPE's position state is updated: one pair of small modules for each form of the update.

The paper's form (``tensorial``) acts across heads and is the same for every channel, which keeps the state equivariant:
rotating all tokens' states by one angle rotates their updates too. The others are its ablations (paper, Table 6) and
give that up: ``separate`` has matrices of its own for cosines and sines, ``vector`` acts across channels instead of
heads, ``flattened`` across both at once.

The attention update maps what attention made of the state, [B, H, T, C], to an addend [B, G, T, C]; the feed-forward
maps the state [B, G, T, C] and the MLP's output [B, T, D] to another. Both start at zero.

Shape letters: B batch, T tokens, H query heads, G key/value heads, C columns of the state, X columns of one of its two
halves (cosines, sines), D hidden size, I rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.model.positions import base

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig


class Weight(base.Parameters):
    """One learned tensor, zero or normal at the start."""

    def __init__(self, *shape: int, zero_init: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))
        self.zero_init = zero_init

    def initialise(self, normal: Callable[[Tensor], Any], constant: Callable[[Tensor, float], Any]) -> None:
        """As ``zero_init`` says."""
        constant(self.weight, 0.0) if self.zero_init else normal(self.weight)


class HeadMix(Weight):
    """``W_att`` [G, H]: a weighted sum over the query heads, the same for every channel."""

    def __init__(self, config: TapeConfig):
        super().__init__(config.num_key_value_heads, config.num_attention_heads, zero_init=True)

    def forward(self, carried_BHTC: Tensor) -> Tensor:
        """[B, H, T, C] -> [B, G, T, C]."""
        mixed = torch.matmul(self.weight, carried_BHTC.flatten(2))
        return mixed.unflatten(2, carried_BHTC.shape[2:])


class HeadScale(Weight):
    """One scalar per query head [H], summed within each group of query heads."""

    def __init__(self, config: TapeConfig):
        super().__init__(config.num_attention_heads, zero_init=True)
        self.groups = config.num_key_value_heads

    def forward(self, carried_BHTC: Tensor) -> Tensor:
        """[B, H, T, C] -> [B, G, T, C]."""
        scaled = self.weight[:, None, None] * carried_BHTC
        return scaled.unflatten(1, (self.groups, -1)).sum(dim=2)


class ChannelMix(Weight):
    """A matrix [X, X] across the channels of each half, of the mean over the query heads of a group."""

    def __init__(self, config: TapeConfig):
        super().__init__(config.head_dim, config.head_dim, zero_init=True)
        self.groups = config.num_key_value_heads

    def forward(self, carried_BHTC: Tensor) -> Tensor:
        """[B, H, T, 2 X] -> [B, G, T, 2 X]."""
        mean = carried_BHTC.unflatten(1, (self.groups, -1)).mean(dim=2)
        return F.linear(mean.unflatten(-1, (2, -1)), self.weight).flatten(-2)


class ChannelScale(Weight):
    """One scalar per channel [X], the same in both halves, of the mean over the query heads of a group."""

    def __init__(self, config: TapeConfig):
        super().__init__(config.head_dim, zero_init=True)
        self.groups = config.num_key_value_heads

    def forward(self, carried_BHTC: Tensor) -> Tensor:
        """[B, H, T, 2 X] -> [B, G, T, 2 X]."""
        mean = carried_BHTC.unflatten(1, (self.groups, -1)).mean(dim=2)
        return (mean.unflatten(-1, (2, -1)) * self.weight).flatten(-2)


class Separately(nn.Module):
    """Two of a kind, the first for the cosines, the second for the sines."""

    def __init__(self, make: Callable[[], nn.Module]):
        super().__init__()
        self.cos, self.sin = make(), make()

    def forward(self, carried_BHTC: Tensor) -> Tensor:
        """[B, H, T, 2 X] -> [B, G, T, 2 X]."""
        cos, sin = carried_BHTC.chunk(2, dim=-1)
        return torch.cat((self.cos(cos), self.sin(sin)), dim=-1)


class Projection(Weight):
    """A bias-free linear map that is no ``nn.Linear``: adapters that target every linear layer must not wrap it."""

    def __init__(self, columns: int, rows: int, zero_init: bool = False):
        super().__init__(rows, columns, zero_init=zero_init)
        self.columns = columns

    def forward(self, x: Tensor) -> Tensor:
        """[..., columns] -> [..., rows]."""
        return F.linear(x, self.weight)

    def transposed_weight(self) -> Tensor:
        """The weight [columns, rows], read through ``forward``: where an engine shards parameters, only a module that
        is being called holds its own."""
        return self(torch.eye(self.columns, dtype=self.weight.dtype, device=self.weight.device))


def across_heads(expand: Any, contract: Any, e_BGTC: Tensor, gate_BTI: Tensor) -> Tensor:
    """``W_down diag(g) W_up e`` with W_up [I, G], as one G x G matrix per token: nothing of [B, I, T, C] exists."""
    up_GI, down_IG = expand.transposed_weight(), contract.transposed_weight()
    # product_I(gh)[i, g * G + h] = W_down[g, i] W_up[i, h]
    product_IX = (down_IG[:, :, None] * up_GI.T[:, None, :]).flatten(1)
    matrix_BTGG = (gate_BTI @ product_IX).unflatten(-1, (down_IG.shape[1], up_GI.shape[0]))
    return torch.einsum("btgh,bhtk->bgtk", matrix_BTGG, e_BGTC)


def across_heads_separately(expand: Any, contract: Any, e_BGTC: Tensor, gate_BTI: Tensor) -> Tensor:
    """:func:`across_heads` by two pairs of matrices and one gate."""
    cos, sin = e_BGTC.chunk(2, dim=-1)
    turned = (
        across_heads(expand.cos, contract.cos, cos, gate_BTI),
        across_heads(expand.sin, contract.sin, sin, gate_BTI),
    )
    return torch.cat(turned, dim=-1)


def across_channels(expand: Any, contract: Any, e_BGTC: Tensor, gate_BTI: Tensor) -> Tensor:
    """``W_down diag(g) W_up`` with W_up [I, X], on each half of each head's state."""
    inner_BGT2I = expand(e_BGTC.unflatten(-1, (2, -1))) * gate_BTI[:, None, :, None]
    return contract(inner_BGT2I).flatten(-2)


def across_both(expand: Any, contract: Any, e_BGTC: Tensor, gate_BTI: Tensor) -> Tensor:
    """``W_down diag(g) W_up`` with W_up [I, G X], on each half of the state of all heads."""
    flat_BT2X = e_BGTC.unflatten(-1, (2, -1)).permute(0, 2, 3, 1, 4).flatten(3)
    out_BT2X = contract(expand(flat_BT2X) * gate_BTI[:, :, None])
    return out_BT2X.unflatten(-1, (e_BGTC.shape[1], -1)).permute(0, 3, 1, 2, 4).flatten(-2)


class Form(NamedTuple):
    """One form of the two updates."""

    whole_halves: bool
    """Whether cosines and sines are stored K wide each. Where updates act on all channels alike, the two halves of a
    rotation stay identical for ever, and K/2 columns of each are the whole state."""
    mix: Callable[[TapeConfig], nn.Module]
    """Makes the attention update ``mix``."""
    scale: Callable[[TapeConfig], nn.Module]
    """Makes the attention update ``scale``."""
    channels: Callable[[TapeConfig], int]
    """Columns of W_up."""
    apply: Callable[[Any, Any, Tensor, Tensor], Tensor]
    """The feed-forward: (expand, contract, e [B, G, T, C], gate [B, T, I]) -> [B, G, T, C]."""
    multiplications: Callable[[int, int, int], float]
    """Of ``apply`` per token, from (G, I, C)."""
    uses: Callable[[int, int], float]
    """How often each weight of the attention update is used per token, from (G, C)."""
    separate: bool = False
    """Whether W_up and W_down come twice."""

    def projections(self, config: TapeConfig, rank: int) -> tuple[nn.Module, nn.Module]:
        """W_up, zero, and W_down."""
        channels = self.channels(config)

        def expand() -> nn.Module:
            return Projection(channels, rank, zero_init=True)

        def contract() -> nn.Module:
            return Projection(rank, channels)

        return (Separately(expand), Separately(contract)) if self.separate else (expand(), contract())


def _head_cost(groups: int, rank: int, columns: int) -> float:
    return rank * groups**2 + groups**2 * columns


FORMS = {
    "tensorial": Form(
        False,
        HeadMix,
        HeadScale,
        lambda config: config.num_key_value_heads,
        across_heads,
        multiplications=_head_cost,
        uses=lambda groups, columns: columns,
    ),
    "separate": Form(
        False,
        lambda config: Separately(lambda: HeadMix(config)),
        lambda config: Separately(lambda: HeadScale(config)),
        lambda config: config.num_key_value_heads,
        across_heads_separately,
        multiplications=lambda groups, rank, columns: 2 * _head_cost(groups, rank, columns // 2),
        uses=lambda groups, columns: columns / 2,
        separate=True,
    ),
    "vector": Form(
        True,
        ChannelMix,
        ChannelScale,
        lambda config: config.head_dim,
        across_channels,
        multiplications=lambda groups, rank, columns: 2 * rank * groups * columns,
        uses=lambda groups, columns: 2 * groups,
    ),
    "flattened": Form(
        True,
        HeadMix,
        HeadScale,
        lambda config: config.num_key_value_heads * config.head_dim,
        across_both,
        multiplications=lambda groups, rank, columns: 2 * rank * groups * columns,
        uses=lambda groups, columns: columns,
    ),
}
