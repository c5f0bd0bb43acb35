"""Put an adapter in the folder that peft saved onto its base, with every one of its tensors."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel
from peft.utils.save_and_load import load_peft_weights, set_peft_model_state_dict
from torch import Tensor
from transformers import PreTrainedModel

from tape_ds.errors import raise_if_any
from tape_ds.models import hollow
from tape_ds.models.files import exact
from tape_ds.models.files.library_errors import as_message

_PREFIX = "base_model.model."
_WRAPPED = re.compile(r"\.(token_adapter\.base_layer|base_layer|original_module)(?=\.)")
"""What peft adds to the names of modules that it wraps."""
_REMEDY = "give the adapter's own base, and all its files"


def put_on(
    model: PreTrainedModel, read: Callable[[str], Tensor] | None, folder: Path, base: str, name: str
) -> PeftModel:
    """Wrap the base's ``model``.

    Args:
        read: returns a weight of the base, where ``model`` is without them.
        folder: of the adapter.
        base, name: of the base and of the adapter, for messages.

    Raises:
        UserError: tensors are missing, have no place, are of another shape or not finite.
    """
    wrong = f"peft could not put it onto {base}"
    with as_message(wrong, "model", name, _REMEDY), warnings.catch_warnings():
        weights = load_peft_weights(str(folder), device="cpu")
        if read is not None:  # what the adapter has of the base's weights is copied into them
            config = PeftConfig.from_pretrained(str(folder))
            hollow.materialise(model, _of_base(weights, config), read)
        warnings.filterwarnings("error", message="Found missing adapter keys")  # peft would continue without them
        wrapped = PeftModel.from_pretrained(model, str(folder))
        # once more, because from_pretrained does not return the tensors that fit nowhere
        left_over = set_peft_model_state_dict(wrapped, weights).unexpected_keys
    damaged = [each for each, tensor in weights.items() if not exact.is_finite(tensor)]
    raise_if_any(exact.not_finite_weights(damaged, "model", name))
    # of resized embeddings peft writes a second copy, under the module's own name
    twice = [each for each in left_over if _is_second_copy(each, weights)]
    exact.require_exact(str(folder), (), set(left_over) - set(twice), ())
    return wrapped


def _of_base(weights: Iterable[str], config: PeftConfig) -> set[str]:
    """Return the names of the base's own weights in an adapter's file: of embeddings that were resized or adapted."""
    saved_whole = tuple(getattr(config, "modules_to_save", None) or ())
    found = set()
    for name in weights:
        plain = name.removeprefix(_PREFIX)
        held = _WRAPPED.sub("", plain)
        module = plain.rpartition(".")[0]
        if held != plain or not module.endswith(saved_whole):
            found.add(held)
    return found


def _is_second_copy(name: str, weights: Mapping[str, Tensor]) -> bool:
    other = weights.get(name.replace(".modules_to_save", ""))
    return ".modules_to_save" in name and other is not None and torch.equal(other, weights[name])
