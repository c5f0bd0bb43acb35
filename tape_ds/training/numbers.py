"""Numbers, and names of parameters, as lines and tables show them."""

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


def summarise(names: tuple[str, ...]) -> str:
    """Exact names, with the layer numbers of otherwise equal ones drawn together."""
    groups: dict[str, list[int]] = {}
    for name in names:
        parts = name.split(".")
        place = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        layer = int(parts[place]) if place is not None else -1
        shape = ".".join("{}" if i == place else part for i, part in enumerate(parts))
        groups.setdefault(shape, []).append(layer)
    return "\n".join(shape.replace("{}", _ranges(layers)) for shape, layers in groups.items())


def _ranges(layers: list[int]) -> str:
    """[0, 1, 2, 4] -> "{0-2,4}"."""
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return "{" + ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts) + "}"
