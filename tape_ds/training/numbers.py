"""Numbers as lines and tables show them."""

import math
from typing import Any

NOT_AVAILABLE = "N/A"


def number(value: Any, form: str) -> str:
    """``value`` in format ``form``; None reads N/A, what is not finite reads NaN, inf or -inf, text stays as it is."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, str):
        return value
    value = float(value)
    if math.isnan(value):
        return "NaN"
    return format(value, form) if math.isfinite(value) else str(value)


def gibibytes(value: float | None) -> str:
    """Bytes as GiB with two decimals."""
    return NOT_AVAILABLE if value is None else f"{value / 2**30:.2f} GiB"


def duration(seconds: float | None) -> str:
    """Seconds as h:mm:ss."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
