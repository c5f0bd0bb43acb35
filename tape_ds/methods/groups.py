"""The groups of parameters that a recipe switches on and off."""

import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tape_ds.encodings.base import PositionEncoding, PositionLayer
from tape_ds.errors import Problem, UserError
from tape_ds.models.outermost import outermost_modules

_NORM = re.compile("(RMS|Layer)?Norm(PerHead|1P|Gated)?$")
"""Ends of the names that transformers' families have for their norms."""


def chosen_modules(model: PreTrainedModel, settings: Any) -> dict[str, nn.Module]:
    """Return the modules of the groups that ``settings`` switches on (train_position, train_norms, train_embeddings),
    by path.

    The output head is in no group: tied, it follows the embeddings; untied, the published recipes leave it as it is.
    """
    norms: dict[str, nn.Module] = {}
    embeddings: dict[str, nn.Module] = {}
    embedding = model.get_input_embeddings()
    for path, module in model.named_modules():
        if module is embedding:
            embeddings[path] = module
        # OLMo's norms have no weights
        if _NORM.search(type(module).__name__) and list(module.parameters()):
            norms[path] = module
    groups = {
        "train_position": position_modules(model),
        "train_norms": norms,
        "train_embeddings": embeddings,
    }
    chosen: dict[str, nn.Module] = {}
    for switch, modules in groups.items():
        if not getattr(settings, switch):
            continue
        if not _parameters_of(modules):
            remedy = f"set {switch} to false, or choose an encoding that has such parameters"
            raise UserError(Problem(switch, True, "this model has no such parameters", remedy))
        chosen |= modules
    return chosen


def position_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost modules that hold an encoding's own parameters, by path: of one inside another (Abacus wraps
    an encoding) peft would make two copies, and train the one without effect."""
    return outermost_modules(model, (PositionEncoding, PositionLayer))


def position_parameters(model: nn.Module) -> set[str]:
    """Return names of an encoding's own parameters, in a model or what wraps it: those of peft's whole copies among
    them."""
    return set(_parameters_of(position_modules(model)))


def _parameters_of(modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the names of the parameters of these modules, by path."""
    parameters = []
    for path, module in modules.items():
        parameters += [f"{path}.{name}" for name, _ in module.named_parameters()]
    return parameters
