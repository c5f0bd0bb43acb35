"""Format numbers and parameter names for lines and tables."""

import math
from collections.abc import Iterable, Sequence
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
    unit = 1
    if text[-1:] in ("k", "K"):
        unit = 1024
        text = text[:-1]
    # isdigit alone takes the digits of every script
    if text.isascii() and text.isdigit():
        return int(text) * unit or None
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
        # the first number is a layer's; a later one, such as an expert's, stays as it is
        place = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        layer = -1
        if place is not None:
            layer = int(parts[place])
            parts[place] = "{}"
        groups.setdefault(".".join(parts), []).append(layer)
    lines = []
    for shape, layers in groups.items():
        lines.append(shape.replace("{}", "{" + ",".join(stretches(layers)) + "}"))
    return "\n".join(lines)


def stretches(numbers: Iterable[int]) -> list[str]:
    """Return numbers as ascending ranges: [0, 1, 2, 4] -> ["0-2", "4"]."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]


def some(names: Sequence[str], most: int) -> str:
    """Return ``a, b and 3 more``."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most:,} more"
    return text


def counted(count: int, noun: str) -> str:
    """Return ``1 row``, or ``2,000 rows``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"
