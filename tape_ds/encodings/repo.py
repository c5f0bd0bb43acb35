"""``repo``: context re-positioning (RePo, 2025, arXiv:2512.14391): positions are predicted, not counted.

From ``start_layer`` on, each layer gives a token one real number for each key/value head,
``z = W_z (silu(W_g x) * (W_c x))``, x being attention's input (here: after its norm). Queries and keys are turned by
RoPE's frequencies times z, so the score of query i and key j depends on ``z_i - z_j`` where RoPE has ``i - j``.
The layers below are RoPE, and z itself reads no index: a shift of all positions changes nothing.

Shape letters: B batch, T tokens of this call, H query heads, G key/value heads, K head size, C pairs of columns, D
hidden size, J width of the network.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tape_ds.encodings import base
from tape_ds.encodings.catalogue import RepoOptions
from tape_ds.encodings.options import ModelConfig
from tape_ds.encodings.rope import Frequencies, RopeEncoding, RopeLayer
from tape_ds.kernels.autocast import without_autocast
from tape_ds.kernels.reference import upcast
from tape_ds.kernels.rotate import rotate


class RepoEncoding(RopeEncoding):
    """RoPE's table, for the layers that rotate by the index."""

    def __init__(self, config: ModelConfig, options: RepoOptions):
        super().__init__(config, options)
        self.counts = options.first_predicted(config.num_hidden_layers) > 0

    def start(self, positions_BTN: Tensor) -> Tensor | None:
        if self.counts:
            return super().start(positions_BTN)
        return None


class Predictor(base.Parameters):
    """``W_z (silu(W_g x) * (W_c x))``: a gated network whose inner part serves all heads of a layer."""

    def __init__(self, hidden: int, width: int, groups: int):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(width, hidden))
        self.content = nn.Parameter(torch.empty(width, hidden))
        self.final = nn.Parameter(torch.empty(groups, width))

    def forward(self, x_BTD: Tensor, groups: slice) -> Tensor:
        """z, at least fp32 [B, T, G], of some of the key/value heads."""
        inner_BTJ = F.silu(F.linear(x_BTD, self.gate)) * F.linear(x_BTD, self.content)
        # bf16 numbers near 100 are 0.5 apart
        with without_autocast(x_BTD.device.type):
            return F.linear(upcast(inner_BTJ), upcast(self.final[groups]))

    def initialise(self, normal: base.Normal, constant: base.Fill) -> None:
        for weight in self.parameters():
            normal(weight)


class RepoLayer(RopeLayer):
    predictor: Predictor | None

    def __init__(self, config: ModelConfig, options: RepoOptions, layer_idx: int):
        super().__init__(config, options, layer_idx)
        self.heads = config.num_attention_heads
        self.groups = config.num_key_value_heads
        self.predictor = None
        if layer_idx >= options.first_predicted(config.num_hidden_layers):
            self.predictor = Predictor(
                config.hidden_size, options.inner_width(config.hidden_size), self.groups
            )
            self.frequencies = Frequencies(config.rope_parameters, config.head_dim)
            self.keeps_unrotated = True

    def observe(self, x_BTD: Tensor, heads: slice = base.EVERY_HEAD) -> Tensor | None:
        """z of the key/value heads that these query heads read, at least fp32 [B, G, T]; None where none is
        predicted."""
        if self.predictor is None:
            return None
        return self.predictor(x_BTD, base.groups_read(heads, self.heads, self.groups)).transpose(
            1, 2
        )

    def rotate(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        start: Tensor | None,
        state: None,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if observed is None:
            assert start is not None
            return super().rotate(q_BHTK, k_BGTK, start, state)
        turns = (
            observed,
            self.frequencies.on(observed.device).to(observed.dtype),
            self.frequencies.factor,
        )
        if torch.compiler.is_compiling():
            # a compiler decides itself what is computed again
            return turned(q_BHTK, *turns), turned(k_BGTK, *turns)
        # Angles and tables are fp32, of each head and layer: a backward computes them again from the positions.
        again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpoint(turned, q_BHTK, *turns, **again), checkpoint(
            turned, k_BGTK, *turns, **again
        )

    def multiplications_per_token(self, keys: float) -> float:
        if self.predictor is None:
            return 0.0
        return sum(weight.numel() for weight in self.predictor.parameters())


def turned(x_BHTK: Tensor, z_BGT: Tensor, frequencies_C: Tensor, factor: float) -> Tensor:
    """Queries or keys, rotated by the real-valued positions z; cosines and sines in z's dtype."""
    angles_BGTC = z_BGT[..., None] * frequencies_C
    table_BGTK = torch.cat((angles_BGTC.cos(), angles_BGTC.sin()), dim=-1) * factor
    # The operator has a gradient for a deviation from the start, none for the start: this deviates from zero, and 0 + x
    # is x.
    return rotate(x_BHTK, table_BGTK.new_zeros(1, 1, *table_BGTK.shape[2:]), table_BGTK)
