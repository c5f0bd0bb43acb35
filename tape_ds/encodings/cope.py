"""``cope``: contextual position encoding (Golovneva et al. 2024, arXiv:2405.18719).

A gate ``g_ij = sigmoid(q_i k_j / sqrt(K))`` is how far query i counts key j. The key's place is what it counts from
there up to itself, ``p_ij = g_ij + ... + g_ii``, and the score gets ``q_i e[p_ij] / sqrt(K)`` added, where e is learned
and read between two of its rows. A head can learn to count words, sentences, digits.

Shape letters: B batch, t a block of queries, s all keys up to its last one, H query heads, K head size, P rows of e.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tape_ds.attention.score_bias import ContentBias
from tape_ds.encodings import base
from tape_ds.encodings.catalogue import CopeOptions
from tape_ds.encodings.options import ModelConfig
from tape_ds.kernels.reference import upcast


class Places(base.Weight):
    """e [P, K], shared by the heads of a layer."""

    def forward(self) -> Tensor:
        """Return a copy, at least fp32."""
        return upcast(self.weight).clone()


class CopeLayer(base.PositionLayer):
    biases_scores = True

    def __init__(self, config: ModelConfig, options: CopeOptions, layer_idx: int):
        super().__init__()
        # as published
        self.places = Places(options.positions, config.head_dim, zero_init=True)
        self.heads = config.num_attention_heads

    def score_bias(
        self, positions: None, carried: None, heads: slice = base.EVERY_HEAD
    ) -> ContentBias:
        """Products with all rows of e are computed once a query, and then looked up: no [t, s, K] tensor."""
        e_PK = self.places()
        last = len(e_PK) - 1
        scale = e_PK.shape[1] ** -0.5

        def block(q_BHtK: Tensor, allowed_B1ts: Tensor, scores_BHts: Tensor) -> Tensor:
            gates_BHts = scores_BHts.sigmoid().masked_fill(~allowed_B1ts, 0.0)
            # from the query backwards, so that what is near is a sum of few numbers
            place_BHts = gates_BHts.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
            products_BHtP = q_BHtK.to(scores_BHts.dtype) @ e_PK.T.to(scores_BHts.dtype) * scale
            below, above = (
                products_BHtP.gather(-1, near.long())
                for near in (place_BHts.floor(), place_BHts.ceil())
            )
            return torch.lerp(below, above, place_BHts.frac())

        return ContentBias(block)

    def multiplications_per_token(self, keys: float) -> float:
        return self.heads * self.places.weight.numel()
