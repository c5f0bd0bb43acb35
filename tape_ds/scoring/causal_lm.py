"""The causal LM inside a training run's wrappers, and evaluation mode that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def bare(wrapped: nn.Module) -> Any:
    """Return the causal LM inside the wrappers of DeepSpeed, DistributedDataParallel and peft (its adapters stay
    active).

    Raises:
        ValueError: peft's learned prompts, which shift every position.
    """
    model: Any = wrapped
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    if hasattr(model, "get_base_model"):
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ValueError("a model with learned prompts cannot be scored: the prompt shifts every position")
        model = model.get_base_model()
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module is in the mode it was in, which need not be the same for all."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
