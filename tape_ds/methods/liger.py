"""Whether Liger's kernels (:mod:`tape_ds.methods.liger_forwards`) can be used here, answered without torch."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def why_not(device: torch.device) -> str | None:
    if importlib.util.find_spec("liger_kernel") is None:
        return "the package liger-kernel is not installed"
    if device.type != "cuda":
        return f"Liger's kernels need a CUDA device, not {device.type!r}"
    from tape_ds.kernels import jit

    return jit.no_compiler()
