"""``pope``: polar coordinate position embedding (Gopalakrishnan et al. 2025, arXiv:2509.10534).

Channel c of a query or key has a magnitude ``mu = softplus(x_c)``, from content alone, and a phase ``position *
theta_c``, from the position alone, with ``theta_c = base^(-c / K)``: twice as many frequencies as RoPE, and no pairs.
The score is the sum over c of ``mu_q mu_k cos((s - t) theta_c + delta_c)`` for query t and key s, times K^-0.5; delta
is learned. As ``[mu cos | mu sin]`` it is a product of vectors of 2 K columns, and any kernel computes it.

Shape letters: B batch, T tokens, H query heads, G key/value heads, K head size, N integers that place a token, D hidden
size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init

from tape_ds.encodings import base
from tape_ds.encodings.catalogue import PopeOptions
from tape_ds.encodings.options import ModelConfig
from tape_ds.encodings.rope import Frequencies, RopeEncoding
from tape_ds.kernels.reference import upcast

TURN = 2 * math.pi


class PopeEncoding(RopeEncoding):
    """Angles of the positions, for a head's K channels."""

    def __init__(self, config: ModelConfig, options: PopeOptions):
        super().__init__(config, options)
        # RoPE's of a head twice as wide
        self.frequencies = Frequencies(self.rope_parameters, 2 * config.head_dim)

    def start(self, positions_BTN: Tensor) -> Tensor:
        """Angles, fp64 [B, 1, T, K], within one turn.

        As large as their fp32 cosines and sines together, and still whatever an fp64 model needs. Less whole turns,
        they lose nothing that counts in a layer's fp32, however far the text goes.
        """
        angles_BTK = positions_BTN[..., :1].double() * self.frequencies.on(positions_BTN.device)
        return torch.remainder(angles_BTK, TURN)[:, None]


class Phases(base.Parameters):
    """Learned offsets delta of the keys' phases, for every key/value head and channel."""

    def __init__(self, config: ModelConfig, options: PopeOptions):
        super().__init__()
        self.uniform = options.delta_init == "uniform"
        self.delta = nn.Parameter(torch.empty(config.num_key_value_heads, config.head_dim))

    def forward(self, groups: slice) -> Tensor:
        """At least fp32 [G, K], for some of the heads, within -2 pi .. 0.

        Whole turns are taken off, where the paper clamps: the same within the range, and a delta at its edge, where all
        of them begin, still has a gradient.
        """
        return torch.remainder(upcast(self.delta[groups]), -TURN)

    def initialise(self, normal: base.Normal, constant: base.Fill) -> None:
        if self.uniform:
            init.uniform_(self.delta, -TURN, 0.0)
        else:
            constant(self.delta, 0.0)


class PopeLayer(base.PositionLayer):
    keeps_unrotated = True

    def __init__(self, config: ModelConfig, options: PopeOptions, layer_idx: int):
        super().__init__()
        self.phases = Phases(config, options)
        self.heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.groups = config.num_key_value_heads
        self.added_columns = self.head_dim

    def observe(self, x_BTD: Tensor, heads: slice = base.EVERY_HEAD) -> Tensor:
        """delta [G, K] of the key/value heads that these query heads read."""
        return self.phases(base.groups_read(heads, self.heads, self.groups))

    def rotate(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        start: Tensor,
        state: None,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return both with 2 K columns; a backward computes what is in between again, fp32 and several times as much,
        from queries and keys as they were."""
        assert observed is not None
        again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        q_BHTX = checkpoint(polar, q_BHTK, start, None, **again)
        return q_BHTX, checkpoint(polar, k_BGTK, start, observed[:, None], **again)

    def multiplications_per_token(self, keys: float) -> float:
        return self.heads * keys * self.head_dim


def polar(x_BHTK: Tensor, angles_B1TK: Tensor, delta_H1K: Tensor | None) -> Tensor:
    """``[mu cos | mu sin]`` [B, H, T, 2 K], computed in fp32 (fp64 for fp64 input) and rounded once."""
    x = upcast(x_BHTK)
    # F.softplus is x itself from 20 on, 2e-9 too small
    mu_BHTK = torch.logaddexp(x, x.new_zeros(()))
    phases = angles_B1TK.to(mu_BHTK.dtype)
    if delta_H1K is not None:
        phases = phases + delta_H1K
    return torch.cat(
        [(mu_BHTK * part).to(x_BHTK.dtype) for part in (phases.cos(), phases.sin())], dim=-1
    )
