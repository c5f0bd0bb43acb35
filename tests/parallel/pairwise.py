"""A pairwise cover: few combinations in which every two values of different dimensions meet.

Most faults need one value, or two that meet; the product of all dimensions, which finds the others, takes minutes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Combination = dict[str, Any]


def cover(
    dimensions: Mapping[str, Sequence[Any]], possible: Callable[[Combination], bool] = lambda one: True
) -> list[Combination]:
    """Combinations of one value of each dimension that cover all pairs which a ``possible`` one has, the same ones each
    time.

    Greedy: the next one is whichever of the product has the most pairs that none had before it.
    """
    everything = [dict(zip(dimensions, values, strict=True)) for values in product(*dimensions.values())]
    everything = [one for one in everything if possible(one)]
    missing = {pair for one in everything for pair in pairs(one)}
    chosen = []
    while missing:
        best = max(everything, key=lambda one: sum(pair in missing for pair in pairs(one)))
        missing.difference_update(pairs(best))
        chosen.append(best)
    return chosen


def pairs(one: Combination) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """The pairs that meet in a combination."""
    return combinations(one.items(), 2)
