"""Covering arrays: few combinations in which every two values of different dimensions meet.

Most faults need one value, or two that meet; the product of all dimensions, which finds the others, takes hours.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Combination = dict[str, Any]


def cover(
    dimensions: Mapping[str, Sequence[Any]],
    possible: Callable[[Combination], bool] = lambda one: True,
) -> list[Combination]:
    """Combinations of one value of each dimension in which every two values meet that do in a ``possible`` one, the
    same combinations each time.

    Greedy: the next one is whichever of the product has the most pairs that none had before it.
    """
    everything = [
        dict(zip(dimensions, values, strict=True)) for values in product(*dimensions.values())
    ]
    candidates = [one for one in everything if possible(one)]
    pairs = [set(combinations(one.items(), 2)) for one in candidates]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(pairs)), key=lambda at: len(pairs[at] & missing))
        missing -= pairs[best]
        chosen.append(candidates[best])
    return chosen
