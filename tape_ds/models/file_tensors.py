"""The tensors of a model's files, and which of its parameters each is made of.

Most are a parameter under its own name. transformers renames some families' (``WeightRenaming``), and fuses others',
such as the matrices of all experts of a layer (``WeightConverter``); when it saves a model it undoes both. Here it does
so with tensors on the meta device that know where they come from: which rule applies stays its secret.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


@dataclass(frozen=True)
class FileTensor:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parameters: frozenset[str]
    """Names of the parameters, or the buffer, that it is made of."""
    is_whole: bool
    """Whether it is the one parameter as it is."""


class _Traced(Tensor):
    """A tensor that knows the parameters that it was computed from."""

    parameters: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "_Traced":
        traced = torch.empty_like(tensor, device="meta").as_subclass(cls)
        traced.parameters = frozenset([name])
        return traced

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        read = [
            leaf.parameters for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, _Traced)
        ]
        for leaf in tree_leaves(result):
            if isinstance(leaf, _Traced):
                leaf.parameters = leaf.parameters.union(*read)
        return result


def file_tensors(model: PreTrainedModel) -> list[FileTensor]:
    """Return the tensors that ``model.save_pretrained`` would write, in its order."""
    state = {name: _Traced.of(name, tensor) for name, tensor in saved_state(model).items()}
    given = {id(tensor) for tensor in state.values()}
    found = []
    for name, tensor in reverted(model, state).items():
        is_whole = id(tensor) in given
        found.append(
            FileTensor(name, tuple(tensor.shape), tensor.dtype, tensor.parameters, is_whole)
        )
    return found


def made_together(
    tensor: FileTensor, tensors: Collection[FileTensor]
) -> tuple[list[str], list[str]]:
    """Return the parameters that a tensor is made of, with all others that its companions need, and the names of these
    tensors."""
    parameters = set(tensor.parameters)
    members: list[FileTensor] = []
    while True:
        found = [each for each in tensors if each.parameters & parameters]
        if len(found) == len(members):
            return sorted(parameters), [each.name for each in members]
        members = found
        parameters.update(*(each.parameters for each in members))


def reverted(model: PreTrainedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters and buffers as tensors of a file."""
    return revert_weight_conversion(model, dict(tensors))


def saved_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model's files: of tied ones, the one that others are tied to."""
    state: dict[str, Tensor] = model.state_dict()
    left_out = {*(model._keys_to_ignore_on_save or ()), *tied_names(model)}
    return {name: tensor for name, tensor in state.items() if name not in left_out}


def tied_names(model: PreTrainedModel) -> dict[str, str]:
    """Return the names of parameters that are another one by the model's class -> that one's."""
    return {
        target: source
        for target, source in model.all_tied_weights_keys.items()
        if model.get_parameter_or_buffer(target) is model.get_parameter_or_buffer(source)
    }
