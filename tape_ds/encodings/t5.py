"""``t5``: T5's relative bias (Raffel et al. 2020, arXiv:1910.10683, Section 2.1): a learned number per bucket of
distances and head, here with a separate table in every layer."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn

from tape_ds.attention.score_bias import ScoreBias
from tape_ds.encodings import base
from tape_ds.encodings.catalogue import T5Options
from tape_ds.encodings.on_device import Constant
from tape_ds.encodings.options import ModelConfig
from tape_ds.kernels.reference import upcast


def buckets_by_distance(buckets: int, max_distance: int) -> np.ndarray:
    """Bucket of each distance 0 .. max_distance, int64; farther ones share the last distance's. The causal form."""
    exact = buckets // 2
    distances = np.arange(max_distance + 1)
    with np.errstate(divide="ignore"):
        growing = np.log(distances / exact) / math.log(max_distance / exact) * (buckets - exact)
    far = np.minimum(exact + np.floor(np.maximum(growing, 0) + 1e-9).astype(np.int64), buckets - 1)
    return np.where(distances < exact, distances, far)


class BucketTable(base.Weight):
    def forward(self, buckets: Tensor) -> Tensor:
        """Bucket numbers [...] -> [..., H], at least fp32."""
        return upcast(nn.functional.embedding(buckets, self.weight))


class T5Layer(base.PositionLayer):
    biases_scores = True
    keeps_bias = True

    def __init__(self, config: ModelConfig, options: T5Options, layer_idx: int):
        super().__init__()
        self.buckets = Constant(buckets_by_distance(options.buckets, options.max_distance))
        self.table = BucketTable(options.buckets, config.num_attention_heads)

    def score_bias(
        self, positions: base.Pair, carried: None, heads: slice = base.EVERY_HEAD
    ) -> ScoreBias:
        """Distances look up a table of max_distance + 1 rows; a key ahead of its query counts as distance 0."""
        by_distance_RH = self.table(self.buckets.on(positions[0].device))[:, heads]
        farthest = len(by_distance_RH) - 1

        def element(query: Tensor, key: Tensor, head: Tensor) -> Tensor:
            return by_distance_RH[(query - key).clamp(0, farthest), head]

        def block(queries: Tensor, keys: Tensor) -> Tensor:
            distances_Bts = (queries - keys.transpose(-1, -2))[:, 0].clamp(0, farthest)
            return nn.functional.embedding(distances_Bts, by_distance_RH).permute(0, 3, 1, 2)

        return ScoreBias(*base.marks(positions), block, element, learned=True)
