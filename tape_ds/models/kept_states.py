"""Memory that the recurrent layers of a hybrid keep for their backward, counted on layers without storage.

It is what torch alone keeps for a whole sequence; kernels of packages keep less, and their memory is not known here.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedConfig

from tape_ds.models import decoder, recurrent
from tape_ds.models.decoder_configuration import carries_state

TOKENS = 512
"""A multiple of the chunks of families, so that nothing is padded."""
_counted: dict[tuple[str, torch.dtype], float] = {}


def bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> float:
    """Return bytes per token of all layers together; 0 of a model without such layers."""
    if not carries_state(config):
        return 0.0
    key = (decoder.key_of(config), dtype)
    if key not in _counted:
        model = decoder.on_meta(config).to(dtype)
        weights = {
            each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())
        }
        kept = {}
        for carrier in recurrent.carriers(model).values():
            # layers of a class are alike
            if type(carrier) not in kept:
                kept[type(carrier)] = _kept(carrier, config.hidden_size, dtype, weights)
        _counted[key] = (
            sum(kept[type(carrier)] for carrier in recurrent.carriers(model).values()) / TOKENS
        )
    return _counted[key]


def _kept(carrier: Any, hidden: int, dtype: torch.dtype, weights: set[int]) -> float:
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # kept alive, so that no other storage gets its place
        if (place := tensor.untyped_storage()._cdata) not in weights:
            saved[place] = tensor
        return tensor

    hidden_1TD = torch.empty(1, TOKENS, hidden, dtype=dtype, device="meta", requires_grad=True)
    with saved_tensors_hooks(keep, lambda tensor: tensor), torch.device("meta"):
        recurrent.native(carrier).forward(carrier, hidden_1TD)
    return float(sum(tensor.untyped_storage().nbytes() for tensor in saved.values()))
