"""``xpos``: rotary position embedding whose scores also decay with the distance (Sun et al. 2022, arXiv:2212.10554).

Pair j of a query at n is scaled by ``zeta_j ** (n / 2048)``, of a key at m by ``zeta_j ** (-m / 2048)``, with
``zeta_j = (2j + 0.4 K) / 1.4 K``: their product depends on n - m alone. Positions count from the middle of the window,
which changes no score and keeps both factors near 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tape_ds.encodings import base
from tape_ds.encodings.on_device import refuse_above
from tape_ds.encodings.options import ModelConfig, Options
from tape_ds.encodings.rope import RopeEncoding
from tape_ds.kernels.reference import upcast
from tape_ds.kernels.rotate import rotate

SCALE_BASE = 2048
GAMMA = 0.4
FARTHEST = 64 * SCALE_BASE
"""Positions from the middle at which zeta_0's factor, 1e-35, is about to leave fp32 (and bf16, which has its range)."""
LARGEST_IN_HALF = 512.0
"""Factor up to which scaled queries and keys stay within fp16's range, some 10,000 positions from the middle."""


class XposEncoding(RopeEncoding):
    """RoPE's cosines and sines, and factors on queries; keys get their inverse."""

    def __init__(self, config: ModelConfig, options: Options):
        super().__init__(config, options)
        # farther, and position 0 is out of reach
        self.middle = min(config.max_position_embeddings // 2, FARTHEST)

    def start(self, positions_BTN: Tensor) -> Tensor:
        """fp32 [B, 1, T, 3 K / 2]: cosines, sines, factors, K/2 columns each; from fp64, rounded once."""
        refuse_above(
            positions_BTN[..., 0],
            self.middle + FARTHEST,
            f"xpos: position {{}} is more than {FARTHEST} from the middle of the window ({self.middle}): its decay "
            f"leaves fp32; raise max_position_embeddings to the length you use, at most {2 * FARTHEST}",
        )
        places_BT1 = positions_BTN[..., :1] - self.middle
        width = self.head_dim
        pairs_C = torch.arange(0, width, 2, dtype=torch.float64, device=positions_BTN.device)
        zeta_C = (pairs_C + GAMMA * width) / ((1 + GAMMA) * width)
        factors_B1TC = (zeta_C ** (places_BT1.double() / SCALE_BASE)).float()[:, None]
        return torch.cat((super().start(positions_BTN), factors_B1TC), dim=-1)


class XposLayer(base.PositionLayer):
    def __init__(self, config: ModelConfig, options: Options, layer_idx: int):
        super().__init__()
        self.width = config.head_dim
        self.is_first = not any(options.has_positions(index) for index in range(layer_idx))

    def rotate(
        self, q_BHTK: Tensor, k_BGTK: Tensor, start: Tensor, state: None, observed: None = None
    ) -> tuple[Tensor, Tensor]:
        """Rotate in fp32, scale, and round once."""
        angles = start[..., : self.width]
        factors = start[..., self.width :].repeat(1, 1, 1, 2)
        # the factors are those of all layers
        if self.is_first and q_BHTK.dtype == torch.float16:
            refuse_above(
                torch.maximum(factors, 1 / factors),
                LARGEST_IN_HALF,
                "xpos: a decay by {} leaves float16: use bfloat16 or float32 at this length",
            )
        q = rotate(upcast(q_BHTK), angles) * factors
        k = rotate(upcast(k_BGTK), angles) / factors
        return q.to(q_BHTK.dtype), k.to(k_BGTK.dtype)
