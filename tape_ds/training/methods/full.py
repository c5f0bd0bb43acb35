"""``full``: every parameter is trained, the position updates (if the encoding has any) included."""

from typing import Any

from torch import nn


def prepare(model: nn.Module, settings: Any) -> nn.Module:
    """Make every parameter trainable."""
    return model.requires_grad_(True)
