"""Lines of a picture as differences from one of them, and the scales that such pictures need."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping


def less_reference(
    lines: Mapping[str, Mapping[float, float]], reference: str | None
) -> dict[str, dict[float, float]]:
    """Return how far lines (name -> x -> y) are above one of them, or (None) above the median of the finite values at
    each x. An x that the reference lacks is left out."""
    if reference is not None:
        base = lines[reference]
    else:
        finite: defaultdict[float, list[float]] = defaultdict(list)
        for points in lines.values():
            for x, y in points.items():
                if math.isfinite(y):
                    finite[x].append(y)
        base = dict(zip(finite, map(statistics.median, finite.values()), strict=True))
    less: dict[str, dict[float, float]] = {}
    for name, points in lines.items():
        less[name] = {x: y - base[x] for x, y in points.items() if x in base}
    return less


def height(lines: Mapping[str, Mapping[float, float]]) -> float:
    """Return a limit of differences that four of five keep, at least 0.01, so that one line does not flatten all."""
    distances: list[float] = []
    for points in lines.values():
        distances += map(abs, filter(math.isfinite, points.values()))
    if not distances:
        return 0.01
    largest = sorted(distances)[int(0.8 * (len(distances) - 1))]
    return max(1.5 * largest, 0.01)


def tick_step(most: float) -> int:
    """Return the power of two whose multiples make at most nine ticks from 0 on."""
    return int(2 ** max(0, math.ceil(math.log2(max(most, 1) / 8))))
