"""``alibi``: attention with linear biases (Press et al. 2022, arXiv:2108.12409): scores fall with the distance."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tape_ds.attention.score_bias import ScoreBias, elementwise
from tape_ds.encodings import base
from tape_ds.encodings.on_device import Constant
from tape_ds.encodings.options import ModelConfig, Options


def slopes(heads: int) -> list[float]:
    """Return the paper's geometric slopes for a power of two; else those of the next lower power, then every second one
    of the next higher power (the authors' code).

    >>> slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    if power == heads:
        return first
    return first + slopes(2 * power)[0::2][: heads - power]


class AlibiEncoding(base.PositionEncoding):
    """Plain positions, kept by a cache: later queries need the distance of each key."""

    remembers = 1


class AlibiLayer(base.PositionLayer):
    """Adds ``-slope_h (n - m)`` to the score of query n and key m."""

    biases_scores = True
    keeps_bias = True
    steepness = 1.0
    """Multiplies every slope."""

    def __init__(self, config: ModelConfig, options: Options, layer_idx: int):
        super().__init__()
        own = [self.steepness * slope for slope in slopes(config.num_attention_heads)]
        self.slopes = Constant(np.array(own, np.float32))

    def score_bias(
        self, positions: base.Pair, carried: None, heads: slice = base.EVERY_HEAD
    ) -> ScoreBias:
        slopes_H = self.slopes.on(positions[0].device)[heads]
        heads_H = torch.arange(len(slopes_H), device=slopes_H.device)

        def element(query: Tensor, key: Tensor, head: Tensor) -> Tensor:
            return slopes_H[head] * (key - query)

        def block(queries: Tensor, keys: Tensor) -> Tensor:
            return elementwise(element, queries, keys, heads_H)

        alike = ("alibi", self.steepness, heads.start, heads.stop)
        return ScoreBias(*base.marks(positions), block, element, alike=alike)
