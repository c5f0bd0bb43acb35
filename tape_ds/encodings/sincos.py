"""``sincos``: sines and cosines of the position are added to the token embeddings (Vaswani et al. 2017,
arXiv:1706.03762, Section 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from tape_ds.encodings import base

BASE = 10_000.0


class SincosEncoding(base.PositionEncoding):
    """Adds ``sin(n / 10000^(2i/D))`` to channel 2i and the cosine to channel 2i + 1, unscaled, as published."""

    translation_invariant = False

    def embed(self, x_BTD: Tensor, positions_BTN: Tensor) -> Tensor:
        """Return embeddings plus waves; angles in fp64, the sum rounded once."""
        width = x_BTD.shape[-1]
        exponents_C = torch.arange(0, width, 2, dtype=torch.float64, device=x_BTD.device) / width
        angles_BTC = positions_BTN.double() * BASE**-exponents_C
        waves_BTD = torch.stack((angles_BTC.sin(), angles_BTC.cos()), dim=-1).flatten(2)[
            ..., :width
        ]
        return (x_BTD + waves_BTD.float()).to(x_BTD.dtype)
