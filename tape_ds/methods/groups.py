"""The groups of parameters that a recipe switches on and off, as exact names."""

import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tape_ds.encodings.base import PositionEncoding, PositionLayer
from tape_ds.errors import Problem, UserError

_NORM = re.compile("(RMS|Layer)?Norm(PerHead|1P|Gated)?$")
"""Ends of the names that transformers' families have for their norms."""


def names(model: PreTrainedModel, settings: Any) -> list[str]:
    """Return parameters of the groups that ``settings`` switches on (train_position, train_norms, train_embeddings),
    sorted.

    The output head is in no group: tied, it follows the embeddings; untied, the published recipes leave it as it is.
    """
    chosen: list[str] = []
    for switch, modules in modules_by_switch(model).items():
        if not getattr(settings, switch):
            continue
        found = [
            f"{path}.{name}"
            for path, module in modules.items()
            for name, _ in module.named_parameters()
        ]
        if not found:
            remedy = f"set {switch} to false, or choose an encoding that has such parameters"
            raise UserError(Problem(switch, True, "this model has no such parameters", remedy))
        chosen += found
    return sorted(chosen)


def position_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost modules that hold an encoding's own parameters, by path: of one inside another (Abacus wraps
    an encoding) peft would make two copies, and train the one without effect."""
    found = {
        p: m for p, m in model.named_modules() if isinstance(m, (PositionEncoding, PositionLayer))
    }
    return {p: m for p, m in found.items() if not any(p.startswith(f"{outer}.") for outer in found)}


def position_parameters(model: nn.Module) -> set[str]:
    """Return names of an encoding's own parameters, in a model or what wraps it: those of peft's whole copies among
    them."""
    modules = position_modules(model)
    return {
        f"{path}.{name}"
        for path, module in modules.items()
        for name, _ in module.named_parameters()
    }


def modules_by_switch(model: PreTrainedModel) -> dict[str, dict[str, nn.Module]]:
    modules = dict(model.named_modules())
    embeddings = model.get_input_embeddings()
    return {
        "train_position": position_modules(model),
        "train_norms": {
            p: m
            for p, m in modules.items()
            if _NORM.search(type(m).__name__) and any(True for _ in m.parameters())
        },
        "train_embeddings": {p: m for p, m in modules.items() if m is embeddings},
    }
