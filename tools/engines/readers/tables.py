"""Cosines and sines of an engine whose kernels need a GPU, by its own rotary module."""

from typing import Any

import numpy as np
import torch


def angles(rotary: Any, length: int, size: int) -> np.ndarray:
    """Return the cosines and sines that a module turns heads of ``size`` entries by, at positions 0 to ``length``:
    fp32 [T, 2 F], zeros where its table ends (a kernel reads other memory there).

    A query of ones in its first half, and zeros in its second, becomes the cosines and the sines.
    """
    known = length
    if hasattr(rotary, "cos_sin_cache"):
        known = min(length, len(rotary.cos_sin_cache))
    query = torch.zeros(known, size)
    query[:, : size // 2] = 1.0
    # vLLM's in PyTorch; `forward` would choose a kernel
    turn = getattr(rotary, "forward_native", rotary.forward)
    turned, _ = turn(torch.arange(known), query.clone(), query.clone())
    found = np.zeros((length, size), dtype=np.float32)
    found[:known] = turned.numpy()
    return found


def check_length(ids: list[int], length: int) -> None:
    """Raise what a server answers to a text that is longer than it serves.

    Raises:
        ValueError: the text is longer.
    """
    if len(ids) > length:
        raise ValueError(f"{len(ids)} tokens, and {length} are served")
