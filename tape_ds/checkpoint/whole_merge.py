"""An adapter merged into its base as a whole, in memory, and the logits compared before and after: for what is not
merged tensor by tensor."""

from collections import Counter
from itertools import chain
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from tape_ds.checkpoint.merged_layers import Adapter, kinds_of
from tape_ds.models.files import exact
from tape_ds.models.files.library_errors import as_message

PROBE = (2, 64)
"""Sequences and tokens that both models are compared on."""


def merged(model: PeftModel, field: str, name: str) -> PreTrainedModel:
    """Merge the adapters of ``model`` into it, and return the whole model, which computes the same.

    Args:
        model: in fp32, adapters active; it is used up.
        field, name: of the adapter, for messages.

    Raises:
        UserError: the adapter's logits are not finite, or merging changes them by more than rounding.
    """
    model.eval()
    _separate_weights(model)
    kinds = kinds_of(model)
    ids = probe(model)
    expected = _logits(model, ids)
    if not bool(expected.isfinite().all()):
        raise exact.not_finite(field, name)
    wrong = f"peft could not merge its adapter ({kinds})"
    with as_message(wrong, field, name, "save the adapter again, in a form that peft merges"):
        whole: PreTrainedModel = model.merge_and_unload(safe_merge=True).eval()
    Adapter(field, name, kinds).check("logits", expected, _logits(whole, ids))
    _separate_layers(whole)
    return whole


def _separate_weights(model: PeftModel) -> None:
    """Give every layer with an adapter weights of its own, where other layers hold the same ones: a head that is tied
    to the embeddings, layers that peft repeats (``layer_replication``). Merging would change those as well."""
    holders = Counter(id(held) for _, held in model.named_parameters(remove_duplicate=False))
    for module in list(model.modules()):
        if not isinstance(module, BaseTunerLayer):
            continue
        layer = module.get_base_layer()
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if holders[id(parameter)] > 1:
                setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))


def _separate_layers(whole: PreTrainedModel) -> None:
    """Give layers that peft repeats (``layer_replication``) what they still share, such as weights without an adapter:
    a folder stores each of them. What the model's class ties stays tied."""
    tied = whole.all_tied_weights_keys
    seen: set[int] = set()
    for name, parameter in list(whole.named_parameters(remove_duplicate=False)):
        if id(parameter) in seen and name not in {*tied, *tied.values()}:
            place, _, last = name.rpartition(".")
            copy = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            setattr(whole.get_submodule(place), last, copy)
        seen.add(id(parameter))


def probe(model: PeftModel) -> Tensor:
    """Return token ids int64 [B, T] to compare logits on: drawn from the vocabulary, after those that an adapter trains
    alone (``trainable_token_indices``), which a draw would miss."""
    sequences, tokens = PROBE
    tokens = min(tokens, getattr(model.config, "max_position_embeddings", None) or tokens)
    rows = model.get_input_embeddings().weight.shape[0]
    ids_BT = torch.randint(rows, (sequences, tokens), generator=torch.Generator().manual_seed(0))
    for config in model.peft_config.values():
        # LoRA's option, or the one of peft's method that trains tokens and nothing else
        given: Any = getattr(config, "trainable_token_indices", None)
        given = given or getattr(config, "token_indices", None) or []
        # of several embeddings, by their names
        if isinstance(given, dict):
            given = [*chain.from_iterable(given.values())]
        chosen = list(given)[:tokens]
        ids_BT[0, : len(chosen)] = torch.tensor(chosen, dtype=torch.long)
    return ids_BT


@torch.no_grad()
def _logits(model: PreTrainedModel | PeftModel, ids_BT: Tensor) -> Tensor:
    return model(input_ids=ids_BT.to(model.device)).logits.float()
