"""Replaces Triton's kernels in an exported model: the PyTorch forms compute the same on every device."""

from typing import Any


def fits(*_: Any) -> bool:
    """Return False: there is no kernel."""
    return False
