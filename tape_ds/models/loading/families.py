"""The model families whose blocks compute what a Llama's do, name for name, and why another model is not one.

Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tape_ds.encodings import scaling
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TAPE = "tape"
"""This project's model type."""
BAICHUAN = "baichuan"
"""Converted to a Llama, see :mod:`tape_ds.models.loading.baichuan`."""
QWEN2 = "qwen2"
"""A Llama with biases on queries, keys and values: ``TapeConfig.qkv_bias``."""
QWEN3 = "qwen3"
"""A Llama with a norm on each head of queries and keys: ``TapeConfig.qk_norm``."""
SHAPES = ("llama", "mistral", QWEN2, QWEN3, TAPE)
"""Model types whose parameters are Llama's, name for name; Qwen3's has two more in each block."""
_NOT_FOREIGN = (*SHAPES, BAICHUAN)
_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
    "rope_parameters",
)


def foreign(config: Mapping[str, Any]) -> str | None:
    """Return the model type in a ``config.json`` if transformers' own class for it is what is extended."""
    name = config.get("model_type")
    return name if isinstance(name, str) and name not in _NOT_FOREIGN else None


def by_class(config: Mapping[str, Any]) -> str:
    """Return a note if transformers' class computes the model, or its folder has code for it."""
    if config.get("auto_map") and (config.get("model_type") in SHAPES or foreign(config) is not None):
        return f"; its folder's own code (auto_map) is not run: it is read as transformers' {config.get('model_type')}"
    return f", by transformers' class for {config['model_type']}" if foreign(config) is not None else ""


def has_llamas_names(config: PreTrainedConfig) -> bool:
    return config.model_type in SHAPES


def check_llama_shaped(config: PreTrainedConfig) -> list[Problem]:
    differences, remedies = [], []
    if not has_llamas_names(config):
        differences.append(f"model_type is {config.model_type!r}, not one of {', '.join(SHAPES)}")
    differences += [f"it has no {name}" for name in _NEEDED if getattr(config, name, None) is None]
    if getattr(config, "hidden_act", "silu") != "silu":
        differences.append(f"its activation is {config.hidden_act!r}, not 'silu'")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in scaling.available():
        differences.append(f"its rope_type is {rope['rope_type']!r}, not one of {', '.join(scaling.available())}")
    if differences:
        remedies.append("use a Llama-shaped checkpoint")
    window, layers = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window and not (layers and all(layer == "full_attention" for layer in layers)):
        differences.append(f"it attends within a sliding window of {window}")
        version = "use v0.2 or v0.3 of Mistral 7B, which have none; or " * (config.model_type == "mistral")
        switch = "sliding_window: null" if config.model_type == "mistral" else "use_sliding_window: false"
        remedies.append(f"{version}write {switch} into its config.json to train it without the window on purpose")
    if getattr(config, "quantization_config", None) is not None:
        differences.append("its weights are quantised")
        before = "give the model as it was before it was quantised"
        remedies.append(f"{before}; load_in_4bit: true trains adapters on that in 4 bits")
    if not differences:
        return []
    name = config.name_or_path or config.model_type
    return [Problem("model", name, "not Llama-shaped: " + "; ".join(differences), "; ".join(remedies))]
