"""Check hybrids by what their class builds: attention, and layers that carry a state
(:mod:`tape_ds.models.recurrent`)."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from tape_ds.encodings import trained_rope
from tape_ds.errors import Problem, UserError
from tape_ds.models import decoder, recurrent
from tape_ds.models.decoder_configuration import STATE_LAYERS, carries_state, layer_kinds

_REMEDY = "give another model"
_OFF: tuple[dict[str, Any], ...] = (
    {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    {"position_embedding_type": "nope"},
)
"""Fields with which a class builds attention without positions, if it does at all."""


class Built:
    """A hybrid as its class builds it, without weights."""

    def __init__(self, native: PreTrainedConfig):
        model = decoder.on_meta(native)
        self.carriers = {
            path: recurrent.native(module) for path, module in recurrent.carriers(model).items()
        }
        self.rotates = bool(decoder.rotary_modules(model))


_built: dict[str, Built] = {}


def built(native: PreTrainedConfig) -> Built:
    key = decoder.key_of(native)
    if key not in _built:
        _built[key] = Built(native)
    return _built[key]


def check(native: PreTrainedConfig) -> list[Problem]:
    """Return why documents cannot reach the layers of a hybrid that carry a state. The configuration must have passed
    :func:`tape_ds.models.decoder_configuration.check`."""
    if not carries_state(native):
        return []
    try:
        carriers = built(native).carriers
    except Exception:  # tape_ds.models.class_frequencies says with which reason
        return []
    layers = sum(kind in STATE_LAYERS for kind in layer_kinds(native))
    kinds = set(carriers.values())
    unmasked = sorted(kind.__name__ for kind in kinds if not _takes_mask(kind))
    forgetting = sorted(
        {function for kind in kinds for function in recurrent.without_documents(kind)}
    )
    wrong = ""
    if len(carriers) < layers:
        wrong = "its layers keep their state outside transformers' caches: a text that is padded, or read in pieces,"
        wrong += " would get another one"
    elif len(carriers) > layers:
        wrong = "its layers carry several states each"
    elif unmasked:
        wrong = f"its layers that carry a state do not learn of padding ({', '.join(unmasked)})"
    elif forgetting:
        wrong = (
            f"its functions begin each piece of a text without a state ({', '.join(forgetting)})"
        )
    if not wrong:
        return []
    return [
        Problem(
            "model",
            native.name_or_path or native.model_type,
            f"{native.model_type}: {wrong}",
            _REMEDY,
        )
    ]


def _takes_mask(kind: type[nn.Module]) -> bool:
    return any(name.endswith("mask") for name in inspect.signature(kind.forward).parameters)


def rotates(native: PreTrainedConfig) -> bool:
    """Return whether the attention of a decoder has RoPE: that of some hybrids has no positions."""
    return not carries_state(native) or built(native).rotates


def without_rope(native: PreTrainedConfig) -> PreTrainedConfig | None:
    """Return the configuration of a hybrid with which its class builds attention without positions, and which says with
    which fields it had them; None: its class always rotates, or never does."""
    if not carries_state(native):
        return None
    for fields in _OFF:
        if not all(hasattr(native, name) for name in fields):
            continue
        config = copy.deepcopy(native)
        before = {name: getattr(native, name) for name in fields}
        for name, value in fields.items():
            setattr(config, name, copy.deepcopy(value))
        setattr(config, decoder.DROPPED, copy.deepcopy(before))
        try:
            # as it is read again from a folder
            again = type(config).from_dict(config.to_dict())
            turns = [built(each).rotates for each in (native, config, again)]
        except Exception:  # a class may raise anything of fields that it does not expect
            continue
        if turns == [True, False, False]:
            return config
    return None


def check_null(native: PreTrainedConfig, content: Mapping[str, Any], source: str) -> list[Problem]:
    """Return why RoPE is open where a ``config.json`` has null for it. Olmo Hybrid's class reads null as RoPE with a
    default base; its published models, which have none, state a null base."""
    named = [content.get(name) for name in ("rope_parameters", "rope_scaling", "rope_theta")]
    if "rope_parameters" not in content or any(each is not None for each in named):
        return []
    off = without_rope(native)
    if off is None or off.rope_parameters == native.rope_parameters:
        return []
    theta = native.rope_parameters["rope_theta"]
    wrong = f"its config.json has rope_parameters = null, which transformers reads as RoPE with theta {theta:g}"
    remedy = 'write {"rope_theta": null} there if the weights were trained without positions in attention, '
    remedy += "else the rope_theta that they were trained with"
    return [Problem("model", source, wrong, remedy)]


def why_not_dropped(native: PreTrainedConfig) -> str:
    """Return why RoPE cannot be dropped from a model that is extended in its own class; empty if it can."""
    kind = native.model_type
    if not rotates(native):
        return f"the attention of this {kind} has no positions to drop"
    if without_rope(native) is None:
        return f"transformers' class for {kind} always rotates: none of its folders could say that RoPE is dropped"
    return ""


def check_unrotated(native: PreTrainedConfig, rope_parameters: Mapping[str, Any]) -> None:
    """Raise UserError for other RoPE parameters than those that a hybrid without RoPE is read to have."""
    name = native.name_or_path or native.model_type
    if dict(rope_parameters) != dict(trained_rope.read(native.to_dict(), name).parameters):
        kind = rope_parameters["rope_type"]
        raise UserError(
            Problem(
                "rope_parameters.rope_type",
                kind,
                f"{name}: {trained_rope.WITHOUT}",
                "rope_parameters: {}",
            )
        )


def lines(config: PreTrainedConfig, skipped_content: str | None = None) -> dict[str, str]:
    """Return what a run and its dry run say of a hybrid, by the names of their lines; nothing of another model.

    ``skipped_content``: the text between PoSE's chunks (``pose_content``); None without PoSE.
    """
    if not carries_state(config):
        return {}
    carriers = built(config).carriers
    how = recurrent.described(carriers.values())
    planned = "their memory is planned as torch alone needs it, in the mean of all layers"
    found = {"recurrent layers": f"{len(carriers)} of {config.num_hidden_layers}: {how}; {planned}"}
    if not built(config).rotates:
        found["encoding"] = trained_rope.WITHOUT
        if getattr(config, decoder.DROPPED, None):
            found["encoding"] = f"RoPE is dropped: {trained_rope.WITHOUT}; no score is scaled"
    if skipped_content is not None:
        over = "and goes on over the text that is left out between them"
        if skipped_content == "contiguous":
            over = "and no text is left out between them"
        found["PoSE"] = (
            "positions jump in attention alone; a state counts tokens: it reads the window's, all chunks as "
            f"one text, {over}"
        )
    return found
