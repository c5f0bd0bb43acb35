"""How numbers are written: with the digits that their standard error supports, and a dash where there is none."""

import math
import re
from datetime import timedelta
from typing import Any

MISSING = "–"
"""What stands where there is no number; never 0."""
LENGTHS = re.compile(r"(length|lengths|window|(max|min)_tokens|stride|max_position_embeddings)$")
"""How names of settings end that count tokens of context."""


def measured(value: float | None, error: float | None, places: int | None = None) -> str:
    """Return a number with its standard error behind it, both to the error's second digit; without one with ``places``
    decimals, or four significant digits."""
    if value is None or not math.isfinite(value):
        return significant(value)
    if error is None or not math.isfinite(error):
        return significant(value) if places is None else f"{value:,.{places}f}"
    places = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 2
    return f"{value:,.{places}f} ± {error:.{places}f}"


def significant(value: float | None, digits: int = 4) -> str:
    """With so many significant digits; below a million all digits before the point."""
    if value is None:
        return MISSING
    if value == 0 or 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".").replace("inf", "∞").replace("nan", "NaN").replace("-", "−")


def length(tokens: int) -> str:
    """Return tokens as this field writes lengths: 891, 8k; 10,000 where it is no whole number of k."""
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def setting(name: str, value: Any) -> str:
    """Return a setting or a cost for people; the ending of its name says its unit."""
    if value is None or isinstance(value, bool):
        return {None: MISSING, True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return ", ".join(setting(name, each) for each in value) or "none"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    if name.endswith("seconds"):
        return f"{value:.1f} s" if value < 60 else str(timedelta(seconds=round(value)))
    if name.endswith("_per_second"):
        return significant(value, 3)
    if isinstance(value, float):
        return f"{value:g}"
    return length(value) if LENGTHS.search(name) else f"{value:,}"
