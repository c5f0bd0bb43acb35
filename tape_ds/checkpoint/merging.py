"""Whole models from folders of trained weights: adapters are merged, and the logits compared before and after."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from tape_ds.checkpoint.trained import find_base, load_trained, read_record
from tape_ds.models.loading import extendable, model_folder, weight_files
from tape_ds.run_folder import WHOLE_WEIGHTS

PROBE = (2, 64)
"""Sequences and tokens that both models are compared on."""
ROUNDING = 512
"""Largest difference allowed, in units of the dtype's rounding at the largest logit, and half of that logit at most.
In fp32 SmolLM2-135M differs by 16 where its adapters (weights of 0.01) change logits by 100,000; a larger model's sums
are longer, which is why there is room."""


def merge(folder: str | Path, *, base_anyway: bool = False, **arguments: Any) -> PreTrainedModel:
    """Return the whole model of a folder of trained weights, in fp32: merging in 16 bit loses bits, so cast the result
    instead. ``arguments`` are for ``from_pretrained`` of the base. Raises RuntimeError if the merged model's logits are
    not the adapter model's."""
    with weight_files.reading(folder, "trained weights"):
        model = load_trained(folder, base_anyway=base_anyway, **({"dtype": torch.float32} | arguments)).eval()
    if not isinstance(model, PeftModel):
        return model
    expected = _logits(model)
    merged = model.merge_and_unload(safe_merge=True).eval()
    difference = (_logits(merged) - expected).abs().max().item()
    allowed = min(ROUNDING * torch.finfo(merged.dtype).eps, 0.5) * expected.abs().max().item()
    if not difference <= allowed:  # not ">": a NaN is no agreement
        raise RuntimeError(f"{folder}: merging changed logits by {difference:.3g}, more than rounding ({allowed:.3g})")
    return merged


def original_dtype(folder: str | Path, *, base_anyway: bool = False) -> torch.dtype:
    """Return the dtype in which the base model of a folder of trained weights is stored (a model trained from scratch:
    the folder itself)."""
    record, source = read_record(folder), str(folder)
    if record.base is not None:
        if any(Path(folder).glob(WHOLE_WEIGHTS)):  # nothing is put onto the base
            source = model_folder.resolve(record.base, with_weights=False)
        else:
            source = find_base(folder, record, base_anyway)
    return extendable.read(source).dtype or torch.float32


@torch.no_grad()
def _logits(model: PreTrainedModel | PeftModel) -> Tensor:
    ids = torch.randint(model.config.vocab_size, PROBE, generator=torch.Generator().manual_seed(0))
    return model(ids.to(model.device)).logits.float()
