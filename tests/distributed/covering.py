"""Covering arrays: few combinations in which every two (or three) values of different dimensions meet.

Most faults need one value, or two that meet; the product of all dimensions, which finds the others, takes hours.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Combination = dict[str, Any]


def cover(
    dimensions: Mapping[str, Sequence[Any]],
    possible: Callable[[Combination], bool] = lambda one: True,
    strength: int = 2,
) -> list[Combination]:
    """Combinations of one value of each dimension in which every ``strength`` values meet that do in a ``possible``
    one, the same combinations each time.

    Greedy: the next one is whichever of the product has the most meetings that none had before it.
    """
    everything = [dict(zip(dimensions, values, strict=True)) for values in product(*dimensions.values())]
    everything = [one for one in everything if possible(one)]
    missing = {met for one in everything for met in meetings(one, strength)}
    chosen = []
    while missing:
        best = max(everything, key=lambda one: sum(met in missing for met in meetings(one, strength)))
        missing.difference_update(meetings(best, strength))
        chosen.append(best)
    return chosen


def meetings(one: Combination, strength: int) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The values of different dimensions that meet in a combination, ``strength`` at a time."""
    return combinations(one.items(), strength)
