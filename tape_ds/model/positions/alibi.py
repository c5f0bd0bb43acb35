"""``alibi``: attention with linear biases (Press et al. 2022, arXiv:2108.12409): scores fall with the distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tape_ds.model.positions import base
from tape_ds.model.score_bias import ScoreBias, elementwise

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig


def slopes(heads: int) -> list[float]:
    """The paper's geometric slopes for a power of two; else those of the next lower power, then every second one of
    the next higher power (the authors' code).

    >>> slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    return first if power == heads else first + slopes(2 * power)[0::2][: heads - power]


class AlibiEncoding(base.PositionEncoding):
    """Positions as they are; a cache keeps them, so that later queries know how far back each key is."""

    remembers = 1

    def start(self, places_BTN: Tensor) -> Tensor:
        """The places themselves, int64 [B, T, 1]."""
        return places_BTN


class AlibiLayer(base.PositionLayer):
    """Adds ``-slope_h (n - m)`` to the score of query n and key m."""

    steepness = 1.0
    """Multiplies every slope."""

    def __init__(self, config: TapeConfig, options: base.Options, layer_index: int):
        super().__init__()
        self.slopes = [self.steepness * slope for slope in slopes(config.num_attention_heads)]

    def score_bias(self, start: Tensor, state: None, key_places_BSN: Tensor, carried_BGSC: None) -> ScoreBias:
        """Distances in integers, products in fp32."""
        slopes_H = torch.tensor(self.slopes, device=start.device)
        heads_H = torch.arange(len(self.slopes), device=start.device)

        def element(query: Tensor, key: Tensor, head: Tensor) -> Tensor:
            return slopes_H[head] * (key - query)

        def block(queries: Tensor, keys: Tensor) -> Tensor:
            return elementwise(element, queries, keys, heads_H)

        return ScoreBias(start[:, None, :, :1], key_places_BSN[:, None, :, :1], block, element)
