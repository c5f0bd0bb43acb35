"""Check a class of transformers with a configuration: it can be built, and its frequencies are those read here.

Published files leave out what a class fills in late, nest it, or contradict themselves. So nothing of them is taken on
trust: the class builds its rotary module, without weights, and its frequencies are compared with the formulas of
:mod:`tape_ds.encodings.scaling`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedConfig

from tape_ds.encodings import scaling, trained_rope
from tape_ds.encodings.trained_rope import FULL, KEPT, of_full
from tape_ds.errors import Problem, UserError
from tape_ds.models import decoder
from tape_ds.models.decoder_configuration import SCORE_SCALE

ROUNDING = 1e-4
"""Largest relative difference of a frequency; classes compute in fp32, where a base to a large power is off by 1e-6."""

_classes: dict[str, list[type[nn.Module]]] = {}
"""Of a configuration: the classes of its rotary modules."""


def check(native: PreTrainedConfig) -> list[Problem]:
    """Return why a base cannot be built by its class, or has other frequencies than its configuration was read to
    have. The configuration must have passed :func:`tape_ds.models.decoder_configuration.check`."""
    name = native.name_or_path or native.model_type
    try:
        own = trained_rope.read(native.to_dict(), name)
    except UserError as error:
        return error.problems
    return _compare(native, native, own.parameters, own.head_size, name)


def check_extended(
    native: PreTrainedConfig, config: PreTrainedConfig, parameters: Mapping[str, Any]
) -> list[Problem]:
    """Return why the class of an accepted base does not compute ``parameters`` with ``config``."""
    name = native.name_or_path or native.model_type
    own = trained_rope.read(native.to_dict(), name)
    return _compare(native, config, parameters, own.head_size, name)


def _compare(
    native: PreTrainedConfig,
    config: PreTrainedConfig,
    parameters: Mapping[str, Any],
    head_size: int,
    name: str,
) -> list[Problem]:
    kind = native.model_type
    try:
        computed = [_computed(module) for module in _rotary(native, config)]
    except Exception as error:  # with sizes that do not fit, a class raises anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        wrong = (
            f"transformers' class for {kind} cannot be built with its config.json ({reason[:300]})"
        )
        remedy = "compare it with the one that the weights were published with: a field is missing, or fits no other"
        return [Problem("model", name, wrong, remedy)]
    if parameters["rope_type"] in KEPT:
        return []
    wanted, attention = scaling.frequencies(parameters, head_size)
    by_class = f"transformers' class for {kind}"
    for found in computed:
        if found is None:  # no layer of this model sees everything
            continue
        frequencies, factor = found
        columns = 2 * len(frequencies)
        # from the new scaling
        factor_follows = SCORE_SCALE in of_full(config.rope_parameters)
        if columns != head_size:
            wrong = f"{by_class} rotates {columns} columns of a head, and its config.json has {head_size}"
        elif not np.allclose(frequencies, wanted, rtol=ROUNDING, atol=0):
            wrong = f"{by_class} computes other frequencies than {scaling.described(parameters)}"
        elif not factor_follows and abs(factor - attention) > ROUNDING * attention:
            wrong = f"{by_class} multiplies cosines by {factor:.6g}, and its config.json by {attention:.6g}"
        else:
            continue
        remedy = "compare config.json with the one that the weights were published with: two fields contradict"
        return [Problem("model", name, wrong, remedy)]
    return []


def _rotary(native: PreTrainedConfig, config: PreTrainedConfig) -> list[nn.Module]:
    key = decoder.key_of(native)
    if key not in _classes:
        modules = decoder.rotary_modules(decoder.on_meta(native)).values()
        _classes[key] = list({type(module): None for module in modules})
    return [kind(config) for kind in _classes[key]]


def _computed(module: Any) -> tuple[np.ndarray, float] | None:
    """Return the frequencies fp64 and the factor on cosines of layers that see everything."""
    names = {name for name, _ in module.named_buffers(recurse=False)}
    for name in (f"{FULL}_inv_freq", "inv_freq"):
        if name in names:
            factor = getattr(module, name.replace("inv_freq", "attention_scaling"), 1.0)
            return getattr(module, name).double().numpy(), float(factor)
    return None
