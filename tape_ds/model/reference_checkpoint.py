"""Checkpoints of the published TAPE code load as our models.

Apart from :mod:`tape_ds.model.convert`, because only this knows another program's names, sizes and dead parameters.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.filling import fill
from tape_ds.model.llama import TapeForCausalLM
from tape_ds.model.positions import scaling

_VARIANTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "rope": ("rope", None),
    "adape": ("tape", {"attention_update": "scale", "feed_forward": True}),
    "adamlp": ("tape", {"attention_update": "off", "feed_forward": True}),
    "adattention": ("tape", {"attention_update": "scale", "feed_forward": False}),
}
_REFERENCE_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
)
_REFERENCE_NAMES = {
    ".pe.x_proj.": ".position.gate.",
    ".pe.up_proj.": ".position.expand.",
    ".pe.down_proj.": ".position.contract.",
    ".post_attention_linear.": ".position.attend.",
}


def from_reference(state_dict: Mapping[str, Tensor], config: Mapping[str, Any], variant: str) -> TapeForCausalLM:
    """Load weights of the published TAPE code (VITA-Group/TAPE, ``models/llama/<variant>.py``).

    Args:
        state_dict: tensors under that code's names.
        config: that code's configuration as a dictionary; ``position_size`` is the rank.
        variant: "rope", "adape", "adamlp" or "adattention".

    What differs is translated: its H x H ``post_attention_linear`` acts as the sums of its rows (``scale``); the last
    layer's position parameters, which nothing reads, are dropped by name; its stored frequencies are recomputed, and
    must be those of the configuration.

    Raises:
        UserError: unknown variant, a size missing in the configuration, angles that cannot be reproduced, or a tensor
            missing, left over or of another shape.
    """
    ours = _reference_config(config, variant)
    with torch.device("meta"):
        model = TapeForCausalLM(ours)
    return fill(model, _reference_tensors(state_dict, ours), variant)


def _reference_config(config: Mapping[str, Any], variant: str) -> TapeConfig:
    """That code's configuration as ours."""
    if variant not in _VARIANTS:
        raise UserError(Problem("variant", variant, "unknown", f"one of: {', '.join(sorted(_VARIANTS))}"))
    encoding, options = _VARIANTS[variant]
    needed = set(_REFERENCE_FIELDS) - {"bos_token_id", "eos_token_id", "tie_word_embeddings"}
    if options is not None and options["feed_forward"]:
        needed.add("position_size")
        options = options | {"rank": config.get("position_size")}
    remedy = "give the configuration that was saved with these weights"
    raise_if_any([Problem(f"config.{name}", None, "missing", remedy) for name in sorted(needed - config.keys())])
    return TapeConfig(
        position_encoding=encoding,
        position_options=options,
        rope_parameters=_reference_angles(config, variant),
        **{name: config[name] for name in _REFERENCE_FIELDS if name in config},
    )


def _reference_tensors(state_dict: Mapping[str, Tensor], config: TapeConfig) -> dict[str, Tensor]:
    """That code's tensors under our names; what nothing reads is dropped by name."""
    unscaled = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}
    frequencies, _ = scaling.frequencies(unscaled, config.head_dim)
    last = f"model.layers.{config.num_hidden_layers - 1}."
    tensors = {}
    for name, tensor in state_dict.items():
        dead = name.startswith(last) and (".pe." in name or ".post_attention_linear." in name)
        if name.endswith("rotary_emb.inv_freq"):
            _check_frequencies(name, tensor, torch.from_numpy(frequencies))
            continue
        if dead:
            continue
        if name.endswith(".post_attention_linear.weight"):
            tensor = tensor.sum(dim=1)
        for theirs, new in _REFERENCE_NAMES.items():
            name = name.replace(theirs, new)
        tensors[name] = tensor
    return tensors


def _reference_angles(config: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """That code's angles as ``rope_parameters``: its rope reads no ``rope_theta``, its TAPE any scaling as linear."""
    theta = 10_000.0 if variant == "rope" else float(config.get("rope_theta") or 10_000.0)
    given = config.get("rope_scaling")
    if not given:
        return {"rope_type": "default", "rope_theta": theta}
    if variant == "rope" and given.get("type") != "linear":
        remedy = "only linear scaling is reproduced; load without it and set rope_parameters of our own"
        raise UserError(Problem("config.rope_scaling", given, "not reproduced", remedy))
    return {"rope_type": "linear", "rope_theta": theta, "factor": float(given["factor"])}


def _check_frequencies(name: str, stored: Tensor, expected: Tensor) -> None:
    """Stored frequencies may be rounded to bf16, but not trained or of another base."""
    if stored.shape != expected.shape or not torch.allclose(stored.double(), expected, rtol=1e-2, atol=0):
        remedy = "give the rope_theta of these weights; trained frequencies cannot be loaded"
        raise UserError(Problem(name, stored.tolist(), "not the frequencies of config.rope_theta", remedy))
