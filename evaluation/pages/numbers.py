"""How numbers are written: with the digits that their standard error supports, and a dash where there is none."""

import math
from collections.abc import Iterable
from typing import Any

from evaluation.pages.parts import MISSING, Cell


def decimals(error: float) -> int:
    """Decimal places that keep two significant digits of a standard error; 2 where it is 0.

    >>> decimals(0.0088), decimals(1.45), decimals(12.0)
    (4, 1, 0)
    """
    if not (math.isfinite(error) and error > 0):
        return 2
    return max(0, 1 - math.floor(math.log10(error)))


def measured(value: float | None, error: float | None, places: int, scale: float = 1.0) -> Cell:
    """``scale * value``, with its standard error behind it where there is one, else with ``places`` decimals."""
    if value is None:
        return Cell()
    if not math.isfinite(value):
        return Cell(words(value))
    if error is None or not math.isfinite(error):
        return Cell(f"{scale * value:,.{places}f}")
    places = decimals(scale * error)
    return Cell(f"{scale * value:,.{places}f}", f"± {scale * error:.{places}f}")


def significant(value: float | None, digits: int = 4) -> str:
    """With so many significant digits, never in powers of ten below a million."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return words(value)
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent >= 6:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def words(value: float) -> str:
    """What is not finite."""
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def length(tokens: int) -> str:
    """Tokens as this field writes lengths: 891, 8k; 10,000 where it is no whole number of k."""
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def found(correct: int, trials: int) -> Cell:
    """A share of trials in percent, the counts behind it."""
    return Cell(f"{100 * correct / trials:.0f}", f"{correct}/{trials}") if trials else Cell()


def duration(seconds: float) -> str:
    """``1:02:03``, or ``12.3 s`` below a minute."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def setting(value: Any) -> str:
    """A configuration's value for people."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(map(setting, value)) or "none"
    return str(value)


def best(values: Iterable[float | None], *, lowest: bool) -> float | None:
    """The best of finite numbers that are not all the same; None where there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if len(set(finite)) < 2:
        return None
    return min(finite) if lowest else max(finite)
