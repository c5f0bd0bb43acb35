"""Compute with another encoding, or other RoPE parameters, and the weights that a model has.

The models of these functions are :class:`tape_ds.models.llama.TapeForCausalLM`, which imports this file.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tape_ds import encodings
from tape_ds.encodings import base, registry
from tape_ds.models.configuration import TapeConfig

_SAVED_WHOLE = re.compile(r"\.modules_to_save\.[^.]+")


@contextmanager
def positions_of(model: PreTrainedModel, config: TapeConfig) -> Iterator[None]:
    """Compute with the encoding of ``config`` in this block, see :func:`change_positions`: to measure the model as the
    Llama it was before, with RoPE scaled or updates off, without loading it twice."""
    if config is model.config:
        yield
        return
    kept = change_positions(model, config)
    try:
        yield
    finally:
        _set_positions(model.model, kept)


def change_positions(model: PreTrainedModel, config: TapeConfig) -> nn.ModuleList:
    """Make ``model`` compute with the encoding of ``config`` and its present weights, and return its former modules.

    The encoding has no parameters of its own, or is the model's own with other RoPE parameters or fewer updates. No
    weights are made or copied, so sharded ones stay as they are.
    """
    decoder: Any = model.model
    kept = nn.ModuleList([decoder.encoding, *(layer.position for layer in decoder.layers)])
    others: list[nn.Module] = [registry.build(config)]
    for index in range(len(decoder.layers)):
        others.append(registry.build_layer(config, index))
    borrowed = nn.ModuleList(others).train(decoder.training)

    updates_off = encodings.without_updates(model.config)
    fits = encodings.same_parameters(config, model.config)
    if updates_off is not None and not fits:
        fits = encodings.same_parameters(config, updates_off)
    if fits:
        # The new modules use the parameters of the present ones: the modules that own them, and an engine's hooks with
        # them. peft keeps a module that it trains whole (`modules_to_save`) one step further in.
        present = {_SAVED_WHOLE.sub("", name): part for name, part in kept.named_modules()}
        for name, part in list(borrowed.named_modules()):
            if isinstance(part, base.Parameters) and name in present:
                parent, _, attribute = name.rpartition(".")
                setattr(borrowed.get_submodule(parent), attribute, present[name])
    owned = {id(weight) for weight in kept.parameters()}
    if any(id(weight) not in owned for weight in borrowed.parameters()):
        raise ValueError(
            f"{config.position_encoding} has parameters of its own: load a model that has them"
        )
    _set_positions(decoder, borrowed)
    return kept


def evaluated_at(model: PreTrainedModel, length: int) -> AbstractContextManager[None]:
    """Compute in this block as the encoding does on texts of ``length`` tokens: ``yarn`` is trained on plain RoPE, and
    scaled to the length."""
    return positions_of(model, encodings.config_at(model.config, length))


def _set_positions(decoder: Any, encoding_and_layers: nn.ModuleList) -> None:
    encoding, *layers = encoding_and_layers
    decoder.encoding = encoding
    for layer, position in zip(decoder.layers, layers, strict=True):
        layer.position = position
