"""A model with new weights: what each weight starts at depends on the seed and its own name, and on nothing else.

Runs that differ in ranks, ZeRO stage, device or precision start alike, and two encodings with one seed share every
weight that both have. (transformers draws from one stream of random numbers as modules are made, and under ZeRO-3 in
another order than without.) Values are drawn module by module on the CPU in fp32 by the model's ``_init_weights``;
under ZeRO-3 parameters are gathered one at a time, and rank 0's values go to all.
"""

import copy
import hashlib
from collections.abc import Iterator

import deepspeed
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM


def build(config: TapeConfig, seed: int, dtype: torch.dtype) -> TapeForCausalLM:
    """Return a new model in training mode, with parameters of this dtype; every rank must call it. Where
    TrainingArguments with ZeRO-3 exist, they are sharded as they are made."""
    config = copy.deepcopy(config)
    # the values come below; they would be drawn twice
    with init.no_init_weights():
        model = TapeForCausalLM._from_config(config, dtype=dtype)
    model.tie_weights()
    with torch.device("meta"):
        blank = TapeForCausalLM(config)
    parameters = dict(model.named_parameters())
    # where parameters are sharded, all ranks take the values of rank 0
    draws = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    draws = draws or not any(hasattr(parameter, "ds_id") for parameter in parameters.values())
    for path, part in _parts(blank):
        # tied ones: the first
        names = [name for name, _ in part.named_parameters(prefix=path) if name in parameters]
        values = _draw(blank, path, part, seed) if draws and names else {}
        for name in names:
            with (
                torch.no_grad(),
                deepspeed.zero.GatheredParameters([parameters[name]], modifier_rank=0),
            ):
                if name in values:
                    parameters[name].copy_(values[name])
    return model


def _parts(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        below = f"{path}.{name}" if path else name
        if isinstance(child, (PreTrainedModel, nn.ModuleList)):
            yield from _parts(child, below)
        else:
            yield below, child


def _draw(blank: TapeForCausalLM, path: str, part: nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw fp32 values on the CPU for every parameter of ``part``, a module of ``blank`` on the meta device."""
    drawn = copy.deepcopy(part).to_empty(device="cpu")
    for parameter in drawn.parameters():
        parameter.data = torch.full_like(parameter, torch.nan, dtype=torch.float32)
    modules = dict(drawn.named_modules(prefix=path))
    with torch.random.fork_rng(devices=[]):
        # children first, as transformers does it
        for name in reversed(modules):
            # a seed for each module
            own = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8]
            torch.default_generator.manual_seed(int.from_bytes(own, "little"))
            blank._init_weights(modules[name])
    values = {}
    forgotten = []
    for name, parameter in drawn.named_parameters(prefix=path):
        values[name] = parameter.detach()
        # still the NaN of above
        if not parameter.isfinite().all():
            forgotten.append(name)
    if forgotten:
        raise RuntimeError(f"_init_weights gives no value to {', '.join(forgotten)}")
    return values
