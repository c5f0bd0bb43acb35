"""``tape``: contextualised equivariant positional encoding (Zhu et al., ICML 2025, arXiv:2501.00712).

Each key/value head carries a position state ``e = [cos | sin]`` per token. It starts as RoPE's rotation; attention and
the feed-forward of every layer update it from content, and queries and keys are rotated by the current state.

What travels from layer to layer is the deviation ``d = e - start``, not ``e``: next to a cosine near 1, a bf16 number
cannot hold an update of 1e-3, next to 0 it can. ``e`` is formed where it is read.

Shape letters: B batch, T tokens, H query heads, G key/value heads (one state each), K head size, C columns of a state
(K, or 2 K in the ablations that act across channels), D hidden, I rank.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tape_ds.attention.score_bias import ScoreBias
from tape_ds.encodings import base
from tape_ds.encodings.alibi import slopes
from tape_ds.encodings.catalogue import TapeOptions
from tape_ds.encodings.kernel_features import draw_grids, features, log_kernel
from tape_ds.encodings.on_device import Constant
from tape_ds.encodings.options import ModelConfig
from tape_ds.encodings.rope import RopeEncoding
from tape_ds.encodings.tape_updates import FORMS, Projection, Update, UpdateForm
from tape_ds.kernels.pair_modulus import scaled_to
from tape_ds.kernels.position_state import position_state
from tape_ds.kernels.reference import rotate_whole
from tape_ds.kernels.rotate import rotate


class TapeEncoding(RopeEncoding):
    """Initial state: RoPE's rotation, with the scaling of ``rope_parameters``, or ALiBi's kernel features."""

    def __init__(self, config: ModelConfig, options: TapeOptions):
        super().__init__(config, options)
        self.whole_halves = FORMS[options.form].whole_halves
        self.from_alibi = options.start == "alibi"
        if options.form != "tensorial" or self.from_alibi:
            self.translation_invariant = False
        self.slopes = Constant(np.array(slopes(config.num_key_value_heads), np.float64))
        # Drawn here: an exported graph would keep the generator, and draw others in its second call.
        self.fixed_grids = Constant(draw_grids(config.head_dim, training=False).numpy()) if self.from_alibi else None

    @property
    def draws(self) -> bool:
        return self.from_alibi or self.random_shift > 0  # torch 2.11 traces no property of super()

    def start(self, positions_BTN: Tensor) -> Tensor:
        """fp32 [B, 1, T, C] (kernel features: [B, G, T, C])."""
        if self.fixed_grids is not None:
            device = positions_BTN.device
            grids_3P = draw_grids(self.head_dim, True) if self.training else self.fixed_grids.on(device)
            return features(positions_BTN[..., 0], self.slopes.on(device), grids_3P)
        rotation_B1TK = super().start(positions_BTN)
        if not self.whole_halves:
            return rotation_B1TK
        cos, sin = rotation_B1TK.chunk(2, dim=-1)
        return torch.cat((cos, cos, sin, sin), dim=-1)


class TapeLayer(base.PositionLayer):
    """Rotation by the current state, and its two updates.

    The update of the last layer that has positions would never be read: it has no parameters, and carries nothing but
    what its own scores need.
    """

    keeps_unrotated = True
    attend: nn.Module | None
    gate: Projection | None

    def __init__(self, config: ModelConfig, options: TapeOptions, layer_idx: int):
        super().__init__()
        self.form_name = options.form
        self.from_alibi = options.start == "alibi"
        self.unit = options.state_norm == "unit"
        self.unit_moved = options.attention_norm == "unit"
        self.identity = options.attention_init == "identity"
        self.state_dtype = getattr(torch, config.state_dtype) if config.state_dtype else None
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.columns = config.head_dim * (2 if self.form.whole_halves else 1)
        last = layer_idx == options.last_placed(config.num_hidden_layers)
        self.attend = None
        self.gate = None
        if not last and options.attention_update != "off":
            self.attend = (self.form.mix if options.attention_update == "mix" else self.form.scale)(config)
        if not last and options.feed_forward:
            self.rank = options.rank or 4 * self.groups
            self.gate = Projection(config.hidden_size, self.rank)
            self.expand, self.contract = self.form.projections(config, self.rank)

    @property
    def form(self) -> UpdateForm:
        """Functions of a table cannot be pickled, so only its name is kept."""
        return FORMS[self.form_name]

    def rotate(
        self, q_BHTK: Tensor, k_BGTK: Tensor, start: Tensor, state: Tensor | None, observed: None = None
    ) -> tuple[Tensor, Tensor]:
        if self.from_alibi:
            return q_BHTK, k_BGTK
        if self.form.whole_halves:
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
        self,
        query_positions_BTN: None,
        carried_BGTC: Tensor | None,
        key_positions_BSN: None,
        carried_BGSC: Tensor | None,
        heads: slice = base.EVERY_HEAD,
    ) -> ScoreBias | None:
        """``ln(e_n . e_m)`` for a state that started from ALiBi; else None."""
        if not self.from_alibi or carried_BGTC is None or carried_BGSC is None:
            return None
        heads_per_group = len(range(self.heads)[heads]) // carried_BGTC.shape[1]
        e_BHTC = carried_BGTC.repeat_interleave(heads_per_group, dim=1)
        return ScoreBias(e_BHTC, carried_BGSC, log_kernel, learned=carried_BGTC.requires_grad)

    def next_state(
        self, start: Tensor, state: Tensor | None, attended_BHTC: Tensor | None, y_BTD: Tensor
    ) -> Tensor | None:
        """``e += W_att (A e)``, then ``e += W_down diag(SiLU(W_x y)) W_up e``, then the moduli (``state_norm``)."""
        attended_BHTC = None if self.attend is None else attended_BHTC
        if attended_BHTC is not None and self.unit_moved:
            attended_BHTC = scaled_to(start, attended_BHTC)
        gate_BTI = None if self.gate is None else self.gate(y_BTD)
        if attended_BHTC is None and gate_BTI is None:
            return state
        like = attended_BHTC if gate_BTI is None else gate_BTI
        assert like is not None
        attend = None if attended_BHTC is None else self.attend
        expand, contract = (None, None) if gate_BTI is None else (self.expand, self.contract)
        dtype = self.state_dtype or like.dtype
        tensors = (start, state, attended_BHTC, gate_BTI)
        of = Update(attend, expand, contract, *tensors, self.groups, dtype, self.identity, self.unit)
        return self.form.update(of)

    def state_columns(self) -> int:
        return self.groups * self.columns

    def multiplications_per_token(self, keys: float) -> float:
        """Return a second value in attention (and a second product of scores, where the state is a bias); the gate and
        the pair of matrices around it."""
        count = 0.0
        if self.attend is not None or self.from_alibi:
            count += self.columns * self.heads * keys * (2 if self.from_alibi else 1)
        if self.attend is not None:
            weights = sum(weight.numel() for weight in self.attend.parameters())
            count += weights * self.form.uses(self.groups, self.columns)
        if self.gate is not None:
            count += self.gate.weight.numel() + self.form.multiplications(self.groups, self.rank, self.columns)
        return count


def current(start_B1TC: Tensor, state: Tensor | None) -> Tensor:
    return start_B1TC if state is None else start_B1TC + state
