"""A learned embedding of a place that is counted from the tokens: in a segment (``bipe_*``), in a number (Abacus)."""

from __future__ import annotations

from torch import Tensor, nn

from tape_ds.encodings import base


class PlaceTable(base.Weight):
    """Learned embedding [rows, D] of a place; places past the last row share it."""

    def forward(self, places: Tensor) -> Tensor:
        return nn.functional.embedding(places.clamp(max=len(self.weight) - 1), self.weight)
