"""The causal LM inside a training run's wrappers, its head, and evaluation mode that leaves no trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tape_ds.models.decoder import ExtendedDecoder, has_plain_head, logits_of
from tape_ds.models.decoder_configuration import changes_logits
from tape_ds.models.language_model import LanguageModel


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


def unscorable(config: Any) -> str | None:
    """Why a model of this configuration is not scored; None where it is: its own code changes what its head gives."""
    if getattr(config, "auto_map", None) and changes_logits(config):
        return "its own code changes what its head gives, which this score does not reproduce"
    return None


def head_of(causal_lm: Any) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden states [N, D] to logits [N, V]: of a class of transformers as its own forward
    has it, else the output head.

    Raises:
        ValueError: no causal LM, or one whose own code changes what its head gives.
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
        if has_plain_head(causal_lm):
            return head
    except TypeError:  # a class whose way to logits cannot be asked for
        return head
    return lambda hidden_ND: logits_of(causal_lm, hidden_ND[None])[0]


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
