"""Put an adapter in the folder that peft saved onto its base, with every one of its tensors."""

import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel, PeftType
from peft.utils.save_and_load import set_peft_model_state_dict
from torch import Tensor
from transformers import PreTrainedModel

from tape_ds.checkpoint import hollow_adapter
from tape_ds.checkpoint.hollow_adapter import HollowAdapter
from tape_ds.errors import raise_if_any
from tape_ds.models import hollow
from tape_ds.models.files import exact, weight_files
from tape_ds.models.files.library_errors import as_message
from tape_ds.models.files.tensor_rows import StoredRows, TensorRows, pieces

_PREFIX = "base_model.model."
_WRAPPED = re.compile(r"\.(token_adapter\.base_layer|base_layer|original_module)(?=\.)")
"""What peft adds to the names of modules that it wraps."""


def put_on(model: PreTrainedModel, folder: Path, base: str, name: str) -> PeftModel:
    """Wrap the base's ``model``.

    Args:
        folder: of the adapter.
        base, name: of the base and of the adapter, for messages.

    Raises:
        UserError: tensors are missing, have no place, are of another shape or not finite.
    """
    with _as_message(base, name):
        tensors = _read(folder, name)
        wrapped, left_over = _whole(model, folder, tensors)
    _require_exact(folder, tensors, [], left_over)
    return wrapped


def put_on_hollow(
    model: PreTrainedModel, read: Callable[[str], Tensor], folder: Path, base: str, name: str
) -> HollowAdapter:
    """Wrap the base's ``model``, which is without its weights; see :func:`put_on`. An adapter that is not LoRA gets its
    own, and the base's in whose place it has others get memory.

    Args:
        read: returns a weight of the base.
    """
    with _as_message(base, name):
        tensors = _read(folder, name)
        config = PeftConfig.from_pretrained(str(folder))
        missing: list[str] = []
        if config.peft_type == PeftType.LORA:
            adapter, missing, left_over = hollow_adapter.load(
                hollow_adapter.wrap(model, config), tensors
            )
        else:
            hollow.materialise(model, _of_base(tensors.names()), read)
            wrapped, left_over = _whole(model, folder, tensors)
            adapter = HollowAdapter(wrapped, {})
    _require_exact(folder, tensors, missing, left_over)
    return adapter


def _as_message(base: str, name: str) -> AbstractContextManager[None]:
    return as_message(
        f"peft could not put it onto {base}",
        "model",
        name,
        "give the adapter's own base, and all its files",
    )


def _read(folder: Path, name: str) -> StoredRows:
    tensors = StoredRows(weight_files.adapter_files(folder))
    damaged = []
    for tensor in tensors.names():
        if not all(map(exact.is_finite, pieces(tensors, tensor))):
            damaged.append(tensor)
    raise_if_any(exact.not_finite_weights(damaged, "model", name))
    return tensors


def _whole(
    model: PreTrainedModel, folder: Path, tensors: TensorRows
) -> tuple[PeftModel, list[str]]:
    """Let peft load the adapter; return the names of tensors that have no place, too."""
    with warnings.catch_warnings():
        # peft would continue without them
        warnings.filterwarnings("error", message="Found missing adapter keys")
        wrapped = PeftModel.from_pretrained(model, str(folder))
    # once more, because from_pretrained does not return the tensors that fit nowhere
    weights = {each: tensors.rows(each) for each in tensors.names()}
    return wrapped, set_peft_model_state_dict(wrapped, weights).unexpected_keys


def _of_base(weights: Iterable[str]) -> set[str]:
    """Return the names of the base's own weights in whose place an adapter's file may have others: of embeddings that
    were resized or adapted, and of modules that were trained whole, which peft copies."""
    return {_WRAPPED.sub("", name.removeprefix(_PREFIX)) for name in weights}


def _require_exact(
    folder: Path, tensors: TensorRows, missing: list[str], left_over: list[str]
) -> None:
    # of resized embeddings peft writes a second copy, under the module's own name
    twice = [each for each in left_over if _is_second_copy(each, tensors)]
    exact.require_exact(str(folder), missing, set(left_over) - set(twice), ())


def _is_second_copy(name: str, tensors: TensorRows) -> bool:
    other = name.replace(".modules_to_save", "")
    return (
        other != name
        and other in tensors.names()
        and torch.equal(tensors.rows(other), tensors.rows(name))
    )
