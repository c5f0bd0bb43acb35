"""``tape``: contextualised equivariant positional encoding (Zhu et al., ICML 2025, arXiv:2501.00712).

Each key/value head carries a position state ``e = [cos | sin]`` per token. It starts as RoPE's rotation; attention and
the feed-forward of every layer update it from content, and queries and keys are rotated by the current state.

What travels from layer to layer is the deviation ``d = e - start``, not ``e``: next to a cosine near 1, a bf16 number
cannot hold an update of 1e-3, next to 0 it can. ``e`` is formed where it is read.

The paper's form of the updates (``tensorial``) acts across heads and is the same for every channel, which keeps the
state equivariant: rotating all tokens' states by one angle rotates their updates too. The others are its ablations
(paper, Table 6) and give that up: ``separate`` has separate matrices for cosines and sines, ``vector`` acts across
channels instead of heads, ``flattened`` across both at once.

Shape letters: B batch, T tokens, H query heads, G key/value heads (one state each), K head size, C columns of a state
(K, or 2 K in the ablations that act across channels), X columns of one of its two halves, D hidden size, I rank.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.attention.score_bias import ScoreBias
from tape_ds.encodings import base
from tape_ds.encodings.alibi import slopes
from tape_ds.encodings.catalogue import TapeOptions
from tape_ds.encodings.kernel_features import draw_grids, features, log_kernel
from tape_ds.encodings.on_device import Constant
from tape_ds.encodings.options import ModelConfig
from tape_ds.encodings.rope import RopeEncoding
from tape_ds.kernels.pair_modulus import restore_modulus, scaled_to
from tape_ds.kernels.position_mix import position_mix
from tape_ds.kernels.position_state import position_state
from tape_ds.kernels.reference import rotate_whole
from tape_ds.kernels.rotate import rotate

WHOLE_HALVES = ("vector", "flattened")
"""Forms whose cosines and sines are K wide each. Where updates act on all channels alike, the two halves of a rotation
stay identical for ever, and K/2 columns of each are the whole state."""


class TapeEncoding(RopeEncoding):
    """Initial state: RoPE's rotation, with the scaling of ``rope_parameters``, or ALiBi's kernel features."""

    def __init__(self, config: ModelConfig, options: TapeOptions):
        super().__init__(config, options)
        self.whole_halves = options.form in WHOLE_HALVES
        self.from_alibi = options.start == "alibi"
        if options.form != "tensorial" or self.from_alibi:
            self.translation_invariant = False
        self.draws = self.from_alibi or self.random_shift > 0
        self.slopes = Constant(np.array(slopes(config.num_key_value_heads), np.float64))
        # Drawn here: an exported graph would keep the generator, and draw others in its second call.
        self.fixed_grids = (
            Constant(draw_grids(config.head_dim, training=False).numpy())
            if self.from_alibi
            else None
        )

    def start(self, positions_BTN: Tensor) -> Tensor:
        """fp32 [B, 1, T, C] (kernel features: [B, G, T, C])."""
        if self.fixed_grids is not None:
            device = positions_BTN.device
            grids_3P = (
                draw_grids(self.head_dim, True) if self.training else self.fixed_grids.on(device)
            )
            return features(positions_BTN[..., 0], self.slopes.on(device), grids_3P)
        rotation_B1TK = super().start(positions_BTN)
        if not self.whole_halves:
            return rotation_B1TK
        cos, sin = rotation_B1TK.chunk(2, dim=-1)
        return torch.cat((cos, cos, sin, sin), dim=-1)


class Matrix(base.Weight):
    """Small matrix, an argument of an operator."""

    def forward(self) -> Tensor:
        """Return a copy: under ZeRO-3 only a module that is being called has its weights."""
        return self.weight.clone()


class HeadScale(base.Weight):
    """One scalar per query head [H], summed within each group of query heads."""

    def __init__(self, groups: int, heads: int, zero_init: bool):
        super().__init__(heads, zero_init=zero_init)
        self.groups = groups

    def forward(self) -> Tensor:
        """As ``W_att`` [G, H]: the scalar of each head in the row of its group."""
        return local_heads(self.groups, len(self.weight), self.weight) * self.weight


class ChannelScale(base.Weight):
    """One scalar per channel [X], the same in both halves, of the mean over the query heads of a group."""

    def forward(self, mean_BGT2X: Tensor) -> Tensor:
        return mean_BGT2X * self.weight


class Separately(nn.Module):
    """Two of a kind: for the cosines, and for the sines."""

    def __init__(self, cos: nn.Module, sin: nn.Module):
        super().__init__()
        self.cos = cos
        self.sin = sin


class Projection(base.Weight):
    """A bias-free linear map that is no ``nn.Linear``: adapters that target every linear layer must not wrap it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class TapeLayer(base.PositionLayer):
    """Rotation by the current state, and its two updates, which both start at zero.

    The update of the last layer that has positions would never be read: it has no parameters, and carries nothing but
    what its own scores need.
    """

    keeps_unrotated = True
    attend: nn.Module | None
    gate: Projection | None
    expand: nn.Module | None
    """W_up."""
    contract: nn.Module | None
    """W_down."""

    def __init__(self, config: ModelConfig, options: TapeOptions, layer_idx: int):
        super().__init__()
        self.form = options.form
        self.whole_halves = self.form in WHOLE_HALVES
        self.from_alibi = options.start == "alibi"
        self.biases_scores = self.from_alibi
        self.unit = options.state_norm == "unit"
        self.unit_attended = options.attention_norm == "unit"
        self.identity = options.attention_init == "identity"
        self.state_dtype = getattr(torch, config.state_dtype) if config.state_dtype else None
        self.heads = config.num_attention_heads
        self.groups = config.num_key_value_heads
        self.columns = config.head_dim * (2 if self.whole_halves else 1)
        self.state_columns = self.groups * self.columns
        self.rank = options.rank or 4 * self.groups
        self.attend = self.gate = self.expand = self.contract = None
        if layer_idx == options.last_placed(config.num_hidden_layers):
            return

        def made(kind: Any, *shape: int, zero_init: bool = True) -> nn.Module:
            if self.form == "separate":
                return Separately(
                    kind(*shape, zero_init=zero_init), kind(*shape, zero_init=zero_init)
                )
            module: nn.Module = kind(*shape, zero_init=zero_init)
            return module

        across_channels = self.form == "vector"
        if options.attention_update == "mix":
            # W_att [G, H], the same for every channel; or [X, X], on the mean over the query heads of a group
            shape = (
                (config.head_dim, config.head_dim) if across_channels else (self.groups, self.heads)
            )
            self.attend = made(Projection if across_channels else Matrix, *shape)
        elif options.attention_update == "scale" and across_channels:
            self.attend = made(ChannelScale, config.head_dim)
        elif options.attention_update == "scale":
            self.attend = made(functools.partial(HeadScale, self.groups), self.heads)
        if options.feed_forward:
            channels = {"vector": config.head_dim, "flattened": self.groups * config.head_dim}
            inner = channels.get(self.form, self.groups)
            kind = Projection if self.whole_halves else Matrix
            self.gate = Projection(self.rank, config.hidden_size)
            self.expand = made(kind, self.rank, inner)
            self.contract = made(kind, inner, self.rank, zero_init=False)

    def rotate(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        start: Tensor,
        state: Tensor | None,
        observed: None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.from_alibi:
            return q_BHTK, k_BGTK
        if self.whole_halves:
            e_BGTC = current(start, state)
            return rotate_whole(q_BHTK, e_BGTC), rotate_whole(k_BGTK, e_BGTC)
        return rotate(q_BHTK, start, state), rotate(k_BGTK, start, state)

    def carry(self, start: Tensor, state: Tensor | None, like: Tensor) -> Tensor | None:
        """Carry the state, so that one softmax gives ``A v`` and ``A e``."""
        if self.attend is None and not self.from_alibi:
            return None
        formed = start.to(like.dtype) if state is None else position_state(start, state, like.dtype)
        return formed.expand(like.shape[0], like.shape[1], -1, -1)

    def score_bias(
        self, positions: None, carried: base.Pair | None, heads: slice = base.EVERY_HEAD
    ) -> ScoreBias | None:
        """``ln(e_n . e_m)`` for a state that started from ALiBi; else None."""
        if not self.from_alibi or carried is None:
            return None
        carried_BGTC, carried_BGSC = carried
        heads_per_group = len(range(self.heads)[heads]) // carried_BGTC.shape[1]
        e_BHTC = carried_BGTC.repeat_interleave(heads_per_group, dim=1)
        return ScoreBias(e_BHTC, carried_BGSC, log_kernel, learned=carried_BGTC.requires_grad)

    def next_state(
        self, start: Tensor, state: Tensor | None, attended_BHTC: Tensor | None, y_BTD: Tensor
    ) -> Tensor | None:
        """``e += W_att (A e)``, then ``e += W_down diag(SiLU(W_x y)) W_up e``, then the moduli (``state_norm``)."""
        attend = None if attended_BHTC is None else self.attend
        attended_BHTC = None if attend is None else attended_BHTC
        gate_BTI = None if self.gate is None else self.gate(y_BTD)
        like = attended_BHTC if gate_BTI is None else gate_BTI
        if like is None:
            return state
        dtype = self.state_dtype or like.dtype
        if attended_BHTC is not None and self.unit_attended:
            attended_BHTC = scaled_to(start, attended_BHTC)

        modules = (attend, self.expand, self.contract)
        if self.form == "tensorial":
            return self._across_heads(
                modules, (start, state, attended_BHTC), gate_BTI, dtype, self.unit
            )
        if self.whole_halves:
            changed = self._step_by_step(start, state, attended_BHTC, gate_BTI, dtype)
        else:
            halves = []
            for half, name in enumerate(("cos", "sin")):
                own = [None if module is None else getattr(module, name) for module in modules]
                states = [
                    None if x is None else x.chunk(2, dim=-1)[half]
                    for x in (start, state, attended_BHTC)
                ]
                halves.append(self._across_heads(own, states, gate_BTI, dtype, False))
            changed = torch.cat(halves, dim=-1)
        if not self.unit:
            return changed
        return restore_modulus(
            start, changed.to(torch.promote_types(changed.dtype, start.dtype))
        ).to(dtype)

    def _across_heads(
        self, modules: Any, states: Any, gate_BTI: Tensor | None, dtype: torch.dtype, unit: bool
    ) -> Tensor:
        """``W_att``, then ``W_down diag(SiLU(g)) W_up``, by one fused operator."""
        attend, expand, contract = (None if module is None else module() for module in modules)
        if attend is not None and self.identity:
            # the weight is counted from the mean over each group's own heads
            mean_over_group = self.groups / self.heads
            attend = attend + local_heads(self.groups, self.heads, attend) * mean_over_group
        start, state, attended = states
        return position_mix(
            start, state, attended, attend, gate_BTI, expand, contract, dtype=dtype, unit=unit
        )

    def _step_by_step(
        self,
        start: Tensor,
        state: Tensor | None,
        attended_BHTC: Tensor | None,
        gate: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """The two updates across channels, or across channels and heads, each rounded separately."""
        attend = self.attend
        expand = self.expand
        contract = self.contract
        groups = self.groups
        if attended_BHTC is not None and attend is not None:
            if self.form == "vector":
                mean_BGTC = attended_BHTC.unflatten(1, (groups, -1)).mean(dim=2)
                update = attend(mean_BGTC.unflatten(-1, (2, -1))).flatten(-2)
            else:
                update = torch.matmul(attend(), attended_BHTC.flatten(2)).unflatten(
                    2, attended_BHTC.shape[2:]
                )
            state = (update if state is None else state + update).to(dtype)
        if gate is not None and expand is not None and contract is not None:
            e_BGTC = current(start, state).to(gate.dtype).expand(len(gate), groups, -1, -1)
            x_BGT2X = e_BGTC.unflatten(-1, (2, -1))
            gate_BTI = F.silu(gate)
            if self.form == "vector":
                update = contract(expand(x_BGT2X) * gate_BTI[:, None, :, None]).flatten(-2)
            else:
                # X: of all heads
                flat_BT2X = x_BGT2X.permute(0, 2, 3, 1, 4).flatten(3)
                flat_BT2X = contract(expand(flat_BT2X) * gate_BTI[:, :, None])
                update = flat_BT2X.unflatten(-1, (groups, -1)).permute(0, 3, 1, 2, 4).flatten(-2)
            state = (update if state is None else state + update).to(dtype)
        assert state is not None
        return state

    def multiplications_per_token(self, keys: float) -> float:
        count = 0.0
        halves = 2 if self.form == "separate" else 1
        if self.attend is not None or self.from_alibi:
            # a second value in attention, and a second product of scores where the state is a bias
            count += self.columns * self.heads * keys * (2 if self.from_alibi else 1)
        if self.attend is not None:
            weights = sum(weight.numel() for weight in self.attend.parameters())
            count += weights * (2 * self.groups if self.form == "vector" else self.columns / halves)
        if self.gate is not None:
            count += self.gate.weight.numel()
            if self.whole_halves:
                count += 2 * self.rank * self.groups * self.columns
            else:  # the pair of matrices is multiplied first
                count += halves * self.rank * self.groups**2 + self.groups**2 * self.columns
        return count


def local_heads(groups: int, heads: int, like: Tensor) -> Tensor:
    """[G, H]: 1 where a query head belongs to a group, else 0."""
    return torch.eye(groups, dtype=like.dtype, device=like.device).repeat_interleave(
        heads // groups, dim=1
    )


def current(start_B1TC: Tensor, state: Tensor | None) -> Tensor:
    if state is None:
        return start_B1TC
    return start_B1TC + state
