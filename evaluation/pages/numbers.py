"""How numbers are written: with the digits that their standard error supports, and a dash where there is none."""

import math
from datetime import timedelta
from typing import Any

from evaluation.pages.parts import MISSING

LENGTHS = frozenset({"target_length", "window", "native_length", "max_tokens", "min_tokens", "stride"})
"""Names of settings that count tokens of context."""


def decimals(error: float) -> int:
    """Decimal places that keep two significant digits of a standard error; 2 where it is 0.

    >>> decimals(0.0088), decimals(1.45), decimals(12.0)
    (4, 1, 0)
    """
    return max(0, 1 - math.floor(math.log10(error))) if error > 0 else 2


def measured(value: float | None, error: float | None, places: int | None = None) -> str:
    """A number with its standard error behind it; without one with ``places`` decimals, or four significant digits."""
    if value is None or not math.isfinite(value) or (places is None and error is None):
        return significant(value)
    if error is None or not math.isfinite(error):
        return f"{value:,.{places or 0}f}"
    places = decimals(error)
    return f"{value:,.{places}f} ± {error:.{places}f}"


def significant(value: float | None, digits: int = 4) -> str:
    """With so many significant digits, never in powers of ten below a million."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent >= 6:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def length(tokens: int) -> str:
    """Tokens as this field writes lengths: 891, 8k; 10,000 where it is no whole number of k."""
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def setting(name: str, value: Any) -> str:
    """A configuration's value for people."""
    if value is None or isinstance(value, bool):
        return {None: MISSING, True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return ", ".join(setting(name, each) for each in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, int):
        return str(value)
    if name.rpartition(".")[2] in LENGTHS:
        return length(value)
    return f"{value:,}" if abs(value) >= 10_000 else str(value)


def cost(name: str, value: Any) -> str:
    """A figure of a cost; its name's ending says its unit."""
    if not isinstance(value, int | float):
        return setting(name, value)
    if name.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    if name.endswith("seconds"):
        return f"{value:.1f} s" if value < 60 else str(timedelta(seconds=round(value)))
    if name.endswith("_per_second"):
        return significant(value, 3)
    return f"{value:,}" if isinstance(value, int) else significant(value)
