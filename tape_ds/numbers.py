"""Format numbers and parameter names for lines and tables."""

import math
from collections.abc import Iterable
from typing import Any

NOT_AVAILABLE = "N/A"


def number(value: Any, form: str) -> str:
    """Return ``value`` in format ``form``; None as N/A, non-finite numbers as NaN, inf or -inf, text unchanged."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, str):
        return value
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isfinite(value):
        return format(value, form)
    return str(value)


def tokens(text: str) -> int | None:
    """Parse a number of tokens: 512, 2k (2,048), 128K; None if it is not one, or 0."""
    count, unit = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
    if count.isascii() and count.isdigit():
        return int(count) * unit or None
    return None


def length(tokens: int) -> str:
    """Return a number of tokens as 8k if it is a multiple of 1,024, else as 891 or 10,000."""
    if tokens >= 1024 and tokens % 1024 == 0:
        return f"{tokens // 1024}k"
    return f"{tokens:,}"


def gibibytes(value: float | None) -> str:
    if value is None:
        return NOT_AVAILABLE
    return f"{value / 2**30:.2f} GiB"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def summarise(names: tuple[str, ...]) -> str:
    """Return the names line by line, with the layer numbers of otherwise equal ones joined."""
    groups: dict[str, list[int]] = {}
    for name in names:
        parts = name.split(".")
        place = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        layer = int(parts[place]) if place is not None else -1
        shape = ".".join("{}" if i == place else part for i, part in enumerate(parts))
        groups.setdefault(shape, []).append(layer)
    return "\n".join(
        shape.replace("{}", "{" + ",".join(stretches(layers)) + "}")
        for shape, layers in groups.items()
    )


def stretches(numbers: Iterable[int]) -> list[str]:
    """Return numbers as ascending ranges: [0, 1, 2, 4] -> ["0-2", "4"]."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]


def counted(count: int, noun: str) -> str:
    """Return ``1 row``, or ``2,000 rows``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"
