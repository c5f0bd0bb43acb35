"""Unwrap the causal LM of a training run, find its output head, and switch to evaluation mode and back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tape_ds.models.decoder import ExtendedDecoder, has_plain_head, logits_of
from tape_ds.models.decoder_configuration import changes_logits
from tape_ds.models.language_model import LanguageModel


def bare(wrapped: nn.Module) -> Any:
    """Return the causal LM without the wrappers of DeepSpeed, DistributedDataParallel and peft; adapters stay active.

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


def unscorable(config: Any) -> str | None:
    """Return why a model with this configuration cannot be scored, or None."""
    if getattr(config, "auto_map", None) and changes_logits(config):
        return "its own code changes the logits of its head, which this score does not reproduce"
    return None


def head_of(causal_lm: Any) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden states [N, D] to logits [N, V].

    Raises:
        ValueError: not a causal LM, or its own code changes the logits.
    """
    head = causal_lm.get_output_embeddings()
    if causal_lm.base_model is causal_lm or head is None:
        raise ValueError(f"{type(causal_lm).__name__} has no base model with an output head: not a causal LM")
    if (reason := unscorable(causal_lm.config)) is not None:
        raise ValueError(reason)
    ours = isinstance(causal_lm, LanguageModel) and not isinstance(causal_lm, ExtendedDecoder)
    if ours or not type(causal_lm).__module__.startswith("transformers."):
        return head
    try:
        plain = has_plain_head(causal_lm)
    except TypeError:  # the source of its forward is not available
        return head
    # e.g. scaled or capped logits
    return head if plain else lambda hidden_ND: logits_of(causal_lm, hidden_ND[None])[0]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode; afterwards restore the mode of every module, which may differ between modules."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
