"""Lines of a picture as differences from one of them, and the scales that such pictures need."""

import math
import statistics
from collections.abc import Iterable, Mapping


def less_reference(
    lines: Mapping[str, Mapping[float, float]], reference: str | None
) -> dict[str, dict[float, float]]:
    """Return how far lines (name -> x -> y) are above one of them, or (None) above the median of the finite values at
    each x. An x that the reference lacks is left out."""
    base: dict[float, float] = {}
    if reference is not None:
        base = dict(lines[reference])
    else:
        found: dict[float, list[float]] = {}
        for points in lines.values():
            for x, y in points.items():
                if math.isfinite(y):
                    found.setdefault(x, []).append(y)
        base = {x: statistics.median(values) for x, values in found.items()}
    return {
        name: {x: y - base[x] for x, y in points.items() if x in base}
        for name, points in lines.items()
    }


def height(values: Iterable[float]) -> float:
    """Return a limit of differences that four of five keep, at least 0.01, so that one line does not flatten all."""
    distances = sorted(abs(value) for value in values if math.isfinite(value))
    largest = distances[int(0.8 * (len(distances) - 1))] if distances else 0.0
    return max(1.5 * largest, 0.01)


def tick_step(most: float) -> int:
    """Return the power of two whose multiples make at most nine ticks from 0 on."""
    return int(2 ** max(0, math.ceil(math.log2(max(most, 1) / 8))))
