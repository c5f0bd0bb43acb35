"""Maps of pairs of tokens: a number for each query and each key up to it, by layer and head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SHARE_WITHIN = 0.998
"""Of signed numbers."""


@dataclass(frozen=True)
class Map:
    """A number for each query and each key up to it."""

    layer: str
    head: str
    values: np.ndarray
    """float [T, T]; what is above the diagonal is not shown."""


@dataclass(frozen=True)
class MapKind:
    """Maps of one quantity, which share their colours."""

    name: str
    unit: str
    """What a number is."""
    maps: Sequence[Map]
    signed: bool = False
    """Numbers around 0, in two colours."""
    rooted: bool = False
    """Colours follow the square root of a number, so that small ones are seen beside large ones."""

    def limits(self) -> tuple[float, float]:
        """Return numbers of the first and the last colour; the few largest of signed ones all have the last, or a
        single pair would leave the others pale."""
        seen = np.concatenate([each.values[np.tril_indices(len(each.values))] for each in self.maps])
        low, high = float(seen.min()), float(seen.max())
        if self.signed:
            high = float(np.quantile(np.abs(seen), SHARE_WITHIN)) or max(-low, high) or 1.0
            return -high, high
        low = min(low, 0.0) if self.rooted else low
        return (low, high) if high > low else (low - 0.5, low + 0.5)


def some(names: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly apart, the first and the last among them.

    >>> some("abcdefg", 3)
    ['a', 'd', 'g']
    """
    places = range(len(names)) if len(names) <= most else np.linspace(0, len(names) - 1, most)
    return [names[round(place)] for place in places]
