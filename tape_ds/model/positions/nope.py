"""``nope``: no positional encoding; order is known from the causal mask alone (Kazemnejad et al. 2023,
arXiv:2305.19466)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape_ds.model.positions import base
from tape_ds.model.positions.options import Options

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig


class NopeEncoding(base.PositionEncoding):
    """Says nothing of where a token stands."""


class NopeLayer(base.PositionLayer):
    """Does nothing."""

    def __init__(self, config: TapeConfig, options: Options, layer_idx: int):
        super().__init__()
