"""Give a model the tensors of a checkpoint, strictly: each has its place, and no place stays empty.

Shared by every way in (:mod:`tape_ds.model.convert`, :mod:`tape_ds.model.reference_checkpoint`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tape_ds.errors import Problem, UserError

_Model = TypeVar("_Model", bound=PreTrainedModel)


def fill(model: _Model, tensors: Mapping[str, Tensor], source: str) -> _Model:
    """Give a model on the meta device these very tensors, all of them and nothing else; evaluation mode.

    Raises:
        UserError: naming every tensor that is missing, left over, of another shape, or unlike the one it is tied to.
    """
    tied = set(model.all_tied_weights_keys)
    untied = [
        f"{name} (not equal to {twin}, to which it is tied)"
        for name, twin in model.all_tied_weights_keys.items()
        if name in tensors and twin in tensors and not torch.equal(tensors[name], tensors[twin])
    ]
    require_exact(source, (), untied, ())
    wanted = {name for name in model.state_dict() if name not in tied}
    given = {name: tensor for name, tensor in tensors.items() if name not in tied}
    require_exact(source, wanted - given.keys(), given.keys() - wanted, ())
    shapes = model.state_dict()
    wrong = [name for name, tensor in given.items() if tensor.shape != shapes[name].shape]
    require_exact(source, (), (), wrong)
    model.load_state_dict(given, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def require_exact(source: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[Any]) -> None:
    """Refuse weights that do not fit; ``source`` is where they come from, for the message.

    Raises:
        UserError: any of the three names something.
    """
    found = {"missing": missing, "without a place": unexpected, "of another shape": mismatched}
    parts = [f"{what}: {', '.join(sorted(map(str, names)))}" for what, names in found.items() if names]
    if parts:
        remedy = "give weights and configuration of the same model"
        raise UserError(Problem("model", source, "tensors " + "; ".join(parts), remedy))
