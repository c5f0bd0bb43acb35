"""Copies of mappings."""

from collections.abc import Iterable, Mapping
from typing import Any


def without(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``values`` without those of ``names``."""
    left = dict(values)
    for name in names:
        left.pop(name, None)
    return left
