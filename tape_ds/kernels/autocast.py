"""Autocast switched off for a block of code."""

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off; nothing where it is off already, since torch's own context takes as long as a small
    operator."""
    if device_type in ("cpu", "cuda") and not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
