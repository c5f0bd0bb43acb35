"""``rope``: rotary position embedding (Su et al. 2021, arXiv:2104.09864), with any scaling of its angles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tape_ds.kernels.reference import rotate
from tape_ds.model.positions import base
from tape_ds.model.positions.scaling import frequencies

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig


class RopeEncoding(base.PositionEncoding):
    """Cosines and sines of the positions' angles: the start of ``tape`` too."""

    def __init__(self, config: TapeConfig, options: base.Options):
        super().__init__()
        # numpy, not tensors: no module cast, meta device or zero.Init can touch them
        self.frequencies, self.factor = frequencies(config.rope_parameters, config.head_dim)

    def start(self, positions_BT: Tensor) -> Tensor:
        """fp32 [B, 1, T, K]: cosines in the first K/2 columns, sines in the last; angles in fp64, rounded once."""
        frequencies_C = torch.from_numpy(self.frequencies).to(positions_BT.device)
        angles_BTC = positions_BT.double()[..., None] * frequencies_C
        return (torch.cat((angles_BTC.cos(), angles_BTC.sin()), dim=-1) * self.factor).float()[:, None]


class RopeLayer(base.PositionLayer):
    """Rotates queries and keys by the start; updates nothing."""

    def __init__(self, config: TapeConfig, options: base.Options, layer_index: int):
        super().__init__()

    def rotate(self, q_BHTK: Tensor, k_BGTK: Tensor, start: Tensor, state: None) -> tuple[Tensor, Tensor]:
        """Rotate both by the same angles."""
        return rotate(q_BHTK, start), rotate(k_BGTK, start)
