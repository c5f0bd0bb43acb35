"""``fire``: functional interpolation for relative positions (Li et al. 2024, arXiv:2310.04418).

The bias is a small network of one number: the logarithmic distance, divided by the logarithm of the query's own
position (at least a learned threshold), so that any length is mapped to the same interval.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tape_ds.attention.score_bias import ScoreBias
from tape_ds.encodings import base
from tape_ds.encodings.alibi import AlibiEncoding
from tape_ds.encodings.catalogue import FireOptions
from tape_ds.encodings.options import ModelConfig
from tape_ds.kernels.reference import upcast

EPSILON = 1e-6


class FireEncoding(AlibiEncoding):
    """Positions as they are, kept by a cache; a query's own position normalises its distances."""

    translation_invariant = False


class FireNetwork(base.Parameters):
    """``W2 relu(W1 x + b1) + b2`` for each head, c and the threshold's multiplier."""

    def __init__(self, options: FireOptions, heads: int):
        super().__init__()
        self.options = options
        self.curvature = nn.Parameter(torch.empty(1))
        self.multiplier = nn.Parameter(torch.empty(1))
        self.weight_in = nn.Parameter(torch.empty(options.width, 1))
        self.bias_in = nn.Parameter(torch.empty(options.width))
        self.weight_out = nn.Parameter(torch.empty(heads, options.width))
        self.bias_out = nn.Parameter(torch.empty(heads))

    def forward(self) -> tuple[Tensor, ...]:
        """Copies, at least fp32: (c, threshold, W1 [J], b1 [J], W2 [H, J], b2 [H])."""
        threshold = (upcast(self.multiplier) * self.options.threshold).abs()
        inner = self.weight_in[:, 0], self.bias_in, self.weight_out, self.bias_out
        return upcast(self.curvature).clone(), threshold, *(upcast(x).clone() for x in inner)

    def initialise(self, normal: base.Normal, constant: base.Fill) -> None:
        for weight in (self.weight_in, self.weight_out):
            normal(weight)
        for weight, value in (
            (self.bias_in, 0.0),
            (self.bias_out, 0.0),
            (self.curvature, self.options.curvature),
            (self.multiplier, 1.0),
        ):
            constant(weight, value)


class FireLayer(base.PositionLayer):
    biases_scores = True
    keeps_bias = True

    def __init__(self, config: ModelConfig, options: FireOptions, layer_idx: int):
        super().__init__()
        self.network = FireNetwork(options, config.num_attention_heads)

    def score_bias(
        self, positions: base.Pair, carried: None, heads: slice = base.EVERY_HEAD
    ) -> ScoreBias:
        c, threshold, weight_in_J, bias_in_J, weight_out_HJ, bias_out_H = self.network()
        weight_out_HJ = weight_out_HJ[heads]
        bias_out_H = bias_out_H[heads]

        def normalised(query: Tensor, key: Tensor) -> Tensor:
            distance = (query - key).abs().to(c.dtype)
            place = query.to(c.dtype)
            far = torch.maximum(place, threshold[0])
            return torch.log((c[0] * distance).abs() + 1) / (
                torch.log((c[0] * far).abs() + 1) + EPSILON
            )

        def element(query: Tensor, key: Tensor, head: Tensor) -> Tensor:
            x = normalised(query, key)
            out = bias_out_H[head]
            for unit in range(len(weight_in_J)):
                out = out + weight_out_HJ[head, unit] * torch.relu(
                    weight_in_J[unit] * x + bias_in_J[unit]
                )
            return out

        def block(queries: Tensor, keys: Tensor) -> Tensor:
            x_BtsJ = torch.relu(
                normalised(queries, keys.transpose(-1, -2))[:, 0, ..., None] * weight_in_J
                + bias_in_J
            )
            return (x_BtsJ @ weight_out_HJ.T + bias_out_H).permute(0, 3, 1, 2)

        return ScoreBias(
            *base.marks(positions), block, element, learned=True, inner=len(weight_in_J)
        )

    def multiplications_per_token(self, keys: float) -> float:
        return keys * (self.network.weight_in.numel() + self.network.weight_out.numel())
