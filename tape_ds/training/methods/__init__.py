"""Registry of extension methods: what of a model is trained.

A method receives a loaded model with its final encoding, decides by exact parameter names what is trained, and freezes
the rest. The names are the contract: they are printed, asserted, and say what a checkpoint holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.training.methods import full, lora, tape


@dataclass(frozen=True)
class Trained:
    """A model ready to be trained, and the exact names of the parameters that will be."""

    model: nn.Module
    names: tuple[str, ...]


_METHODS: dict[str, Callable[[nn.Module, Any], nn.Module]] = {
    "tape": tape.prepare,
    "lora": lora.prepare,
    "full": full.prepare,
}


def available() -> list[str]:
    """Names of the methods, as a recipe's ``method`` takes them."""
    return sorted(_METHODS)


def prepare(name: str, model: nn.Module, settings: Any) -> Trained:
    """Choose what ``model`` trains; ``settings`` is the method section of a recipe.

    Raises:
        UserError: an unknown method, or one that has nothing to train in this model.
    """
    if name not in _METHODS:
        raise UserError(Problem("method", name, "unknown", did_you_mean(name, _METHODS)))
    prepared = _METHODS[name](model, settings)
    names = tuple(name for name, parameter in prepared.named_parameters() if parameter.requires_grad)
    if not names:
        remedy = "set train_position, train_norms or train_embeddings, or choose another method"
        raise UserError(Problem("method", name, "there is nothing to train", remedy))
    return Trained(prepared, names)


def assert_trainable(model: nn.Module, names: tuple[str, ...]) -> None:
    """Raise RuntimeError unless exactly ``names`` require gradients: a wrapper may have changed that."""
    found = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if found != set(names):
        extra, lost = sorted(found - set(names)), sorted(set(names) - found)
        raise RuntimeError(f"trainable parameters changed: not meant to train {extra}, meant to train {lost}")
