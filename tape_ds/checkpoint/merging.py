"""Whole models from adapters, a run's own and peft's: merged, and the logits compared before and after."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from tape_ds.checkpoint.trained import find_base, load_trained, read_record
from tape_ds.errors import Problem, UserError
from tape_ds.models.loading import exact, extendable, model_folder
from tape_ds.models.loading.library_errors import as_message
from tape_ds.run_folder import WHOLE_WEIGHTS

PROBE = (2, 64)
"""Sequences and tokens that both models are compared on."""
ROUNDING = 512
"""Largest difference allowed, in units of the dtype's rounding at the largest logit, and half of that logit at most.
In fp32 SmolLM2-135M differs by 16 where its adapters (weights of 0.01) change logits by 100,000; a larger model's sums
are longer, which is why there is room."""


def merge(folder: str | Path, *, base_anyway: bool = False, **arguments: Any) -> PreTrainedModel:
    """Return the whole model of a folder of trained weights, in fp32: merging in 16 bit loses bits, so cast the result
    instead. ``arguments`` are for ``from_pretrained`` of the base. Raises UserError: see :func:`merged`."""
    model = load_trained(folder, base_anyway=base_anyway, **({"dtype": torch.float32} | arguments)).eval()
    if isinstance(model, PeftModel):
        model = merged(model, "trained weights", str(folder))
    exact.require_finite(model, "trained weights", str(folder))
    return model


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
    kinds = sorted({str(getattr(each.peft_type, "value", each.peft_type)) for each in model.peft_config.values()})
    ids = _probe(model)
    expected = _logits(model, ids)
    if not bool(expected.isfinite().all()):
        raise exact.not_finite(field, name)
    wrong = f"peft could not merge its adapter ({', '.join(kinds)})"
    with as_message(wrong, field, name, "save the adapter again, in a form that peft merges"):
        whole: PreTrainedModel = model.merge_and_unload(safe_merge=True).eval()
    difference = (_logits(whole, ids) - expected).abs().max().item()
    largest = expected.abs().max().item()
    allowed = min(ROUNDING * torch.finfo(whole.dtype).eps, 0.5) * largest
    if not difference <= allowed:  # not ">": a NaN is no agreement
        wrong = f"merging changed logits by {difference:.3g} of {largest:.3g}, more than rounding ({allowed:.3g}): "
        wrong += f"the merged model is not the adapter (its kind: {', '.join(kinds)})"
        raise UserError(Problem(field, name, wrong, "use it by peft, unmerged, or train an adapter that can be merged"))
    _separate_layers(whole)
    return whole


def original_dtype(folder: str | Path, *, base_anyway: bool = False) -> torch.dtype:
    """Return the dtype in which the base model of a folder of trained weights is stored (a model trained from scratch:
    the folder itself)."""
    record, source = read_record(folder), str(folder)
    if record.base is not None:
        if any(Path(folder).glob(WHOLE_WEIGHTS)):  # nothing is put onto the base
            source = model_folder.resolve(record.base, with_weights=False)
        else:
            source = find_base(folder, record, base_anyway)
    return exact.stored_dtype(source, extendable.read(source))


def _separate_weights(model: PeftModel) -> None:
    """Give every layer with an adapter weights of its own, where other layers hold the same ones: a head that is tied
    to the embeddings, layers that peft repeats (``layer_replication``). Merging would change those as well."""
    holders: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    for adapted in [module for module in model.modules() if isinstance(module, BaseTunerLayer)]:
        layer = adapted.get_base_layer()
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if holders.get(id(parameter), 0) > 1:
                setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))


def _separate_layers(whole: PreTrainedModel) -> None:
    """Give layers that peft repeats (``layer_replication``) what they still share, such as weights without an adapter:
    a folder stores each of them. What the model's class ties stays tied."""
    tied = whole.all_tied_weights_keys
    seen: set[int] = set()
    for name, parameter in list(whole.named_parameters(remove_duplicate=False)):
        if id(parameter) in seen and name not in {*tied, *tied.values()}:
            place, _, last = name.rpartition(".")
            own = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            setattr(whole.get_submodule(place), last, own)
        seen.add(id(parameter))


def _probe(model: PeftModel) -> Tensor:
    """Return token ids int64 [B, T] to compare logits on: drawn from the vocabulary, after those that an adapter trains
    alone (``trainable_token_indices``), which a draw would miss."""
    sequences, tokens = PROBE
    tokens = min(tokens, getattr(model.config, "max_position_embeddings", None) or tokens)
    rows = model.get_input_embeddings().weight.shape[0]
    ids_BT = torch.randint(rows, (sequences, tokens), generator=torch.Generator().manual_seed(0))
    for each in model.peft_config.values():
        given: Any = getattr(each, "trainable_token_indices", None) or getattr(each, "token_indices", None) or []
        own = [number for numbers in given.values() for number in numbers] if isinstance(given, dict) else list(given)
        own = own[:tokens]
        ids_BT[0, : len(own)] = torch.tensor(own, dtype=torch.long)
    return ids_BT


@torch.no_grad()
def _logits(model: PreTrainedModel | PeftModel, ids_BT: Tensor) -> Tensor:
    return model(input_ids=ids_BT.to(model.device)).logits.float()
