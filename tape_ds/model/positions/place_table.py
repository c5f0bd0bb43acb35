"""A learned embedding of a place that is counted from the tokens: in a segment (``bipe_*``), in a number (Abacus)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tape_ds.model.positions import base


class PlaceTable(base.Parameters):
    """The learned embedding [rows, D] of a place; places beyond the last row share it."""

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))

    def forward(self, places: Tensor) -> Tensor:
        """Places [...], 0 or more -> [..., D]."""
        return nn.functional.embedding(places.clamp(max=len(self.weight) - 1), self.weight)

    def initialise(self, normal: Callable[[Tensor], Any], constant: Callable[[Tensor, float], Any]) -> None:
        """Normal, as every embedding of the model."""
        normal(self.weight)
