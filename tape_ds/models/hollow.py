"""A model of which everything is there but its weights: parameters have their shapes, on the CPU, and take no memory.

Libraries that look at a model, or wrap parts of it, work on it as on a loaded one. They would not on the meta device:
buffers have no values there, and peft moves its own weights to the device of the base's.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from tape_ds.models.files.tensor_rows import TensorRows


@dataclass(frozen=True)
class WeightSource:
    """Where the weights of a parameter are read."""

    tensors: TensorRows
    name: str
    """Of one of the tensors."""

    def rows(self, first: int = 0, last: int | None = None) -> Tensor:
        """Return rows ``first`` to ``last`` (default: all of them), in the dtype in which they are held."""
        return self.tensors.rows(self.name, first, last)


class _HollowParameter(nn.Parameter):
    """One number for all places. A copy of it has one of its own, where torch would give a copy memory for all."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not is_hollow(self):
            copied: Tensor = super().__deepcopy__(memo)
            return copied
        if id(self) not in memo:
            memo[id(self)] = parameter(self)
        found: Tensor = memo[id(self)]
        return found


def parameter(like: Tensor, dtype: torch.dtype | None = None) -> nn.Parameter:
    """Return a new parameter without its weights, in the shape of ``like`` and in ``dtype`` (default: its own)."""
    number = torch.zeros((), dtype=dtype or like.dtype)
    return _HollowParameter(number.expand(like.shape), requires_grad=False)


def hollow(on_meta: PreTrainedModel) -> PreTrainedModel:
    """Return the model that was loaded onto the meta device, in fp32, in evaluation mode; its buffers have values."""
    with init.no_init_weights(), init_empty_weights(include_buffers=False):
        model = type(on_meta)(on_meta.config)
    model.tie_weights()
    model.generation_config = on_meta.generation_config
    model.name_or_path = on_meta.name_or_path
    conversions = getattr(on_meta, "_weight_conversions", None)
    # how names in files differ from the model's
    if conversions is not None:
        model._weight_conversions = conversions
    empty(model, torch.float32)
    return model.eval()


def empty(model: nn.Module, dtype: torch.dtype) -> None:
    """Give every parameter one number, in ``dtype``, for all its places; those that were one stay one."""
    for places in owners(model).values():
        held = getattr(*places[0])
        emptied = parameter(held, dtype if held.is_floating_point() else None)
        for module, name in places:
            module.register_parameter(name, emptied)


def owners(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return the first name of every parameter -> the modules that have it, each with its name there."""
    first: dict[nn.Parameter, str] = {}
    found: dict[str, list[tuple[nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                known = first.setdefault(parameter, f"{path}.{name}" if path else name)
                found.setdefault(known, []).append((module, name))
    return found


def is_hollow(tensor: Tensor) -> bool:
    """Whether a tensor has one number for several places."""
    return tensor.untyped_storage().nbytes() < tensor.nbytes


def put(places: list[tuple[nn.Module, str]], tensor: Tensor) -> None:
    """Put a tensor where these modules have a parameter."""
    parameter = nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
    for module, name in places:
        module.register_parameter(name, parameter)


def materialise(model: nn.Module, names: Collection[str], read: Callable[[str], Tensor]) -> None:
    """Give parameters memory, and what ``read`` returns for their names, in their own dtype."""
    for name, held in model.named_parameters(remove_duplicate=False):
        if name in names and is_hollow(held):
            held.data = read(name).to(held.dtype, copy=True)
