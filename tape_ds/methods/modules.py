"""Find modules of a model by their class, for what replaces their forwards."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn


def modules_of(model: nn.Module, kind: type) -> list[Any]:
    """Return the modules of a class, wrapped by peft or not, in the order of the model."""
    return [module for module in model.modules() if isinstance(module, kind)]


def in_words(found: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return each name with how many there are, for the log; those of which there is one at least."""
    return [f"{name} ({len(modules)})" for name, modules in found.items() if modules]
