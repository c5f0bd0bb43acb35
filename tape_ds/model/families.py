"""Which model families can be extended, and why another one cannot.

A family is taken in when its blocks compute what a Llama's do, name for name: :data:`SHAPES`. Everything that differs
is found in the configuration, before any weight is read, and told together with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import paths
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.model.positions import scaling, trained_rope

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TAPE = "tape"
"""This project's own."""
BAICHUAN = "baichuan"
"""Becomes a Llama, see :mod:`tape_ds.model.baichuan`."""

QWEN2 = "qwen2"
"""A Llama with biases on queries, keys and values: ``TapeConfig.qkv_bias``."""

QWEN3 = "qwen3"
"""A Llama with a norm on each head of queries and keys: ``TapeConfig.qk_norm``."""

SHAPES = ("llama", "mistral", QWEN2, QWEN3, TAPE)
"""Model types whose parameters are Llama's, name for name; Qwen3's has two more in each block."""
TAKEN = (*SHAPES, BAICHUAN)
"""Every model type that becomes a model of this project."""

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
_EXPERTS = "its feed-forward is a mixture of experts"
_GEMMA = "its norms scale by 1 + weight, and its embeddings by the root of the hidden size"
_NORMED_HEADS = "it normalises queries and keys"
_POST_NORM = "its norms come after attention and feed-forward, not before"
_SIDE_BY_SIDE = "it runs attention and feed-forward side by side"
_SOME_WINDOWS = "some of its layers attend within a sliding window"
_FACTORS = "it multiplies embeddings, residuals and logits by extra factors"
_LATENT = "its keys and values are compressed (multi-head latent attention)"
_PART_ROTATED = "it rotates a part of each head"
REASONS = {
    "cohere": f"{_SIDE_BY_SIDE}, and scales its logits",
    "cohere2": f"{_SIDE_BY_SIDE}, and scales its logits; {_SOME_WINDOWS}",
    "deepseek_v2": f"{_EXPERTS}; {_LATENT}",
    "deepseek_v3": f"{_EXPERTS}; {_LATENT}",
    "exaone4": f"{_POST_NORM}; {_SOME_WINDOWS}",
    "falcon": f"{_SIDE_BY_SIDE}, on one fused projection",
    "gemma": _GEMMA,
    "gemma2": f"{_GEMMA}; it caps its scores",
    "gemma3": f"{_GEMMA}; {_NORMED_HEADS}; it reads images too",
    "gemma3_text": f"{_GEMMA}; {_NORMED_HEADS}",
    "glm": f"{_PART_ROTATED}; its gate and up projections are one",
    "glm4": f"{_PART_ROTATED}; its gate and up projections are one; it has norms after attention and feed-forward too",
    "gpt2": "it learns a vector for every position, which no rotary angle replaces",
    "gpt_neox": f"{_SIDE_BY_SIDE}; {_PART_ROTATED}",
    "gpt_oss": f"{_EXPERTS}; {_SOME_WINDOWS}",
    "granite": _FACTORS,
    "granitemoe": f"{_EXPERTS}; {_FACTORS}",
    "internlm2": "its queries, keys and values are one projection",
    "minicpm": _FACTORS,
    "minicpm3": f"{_FACTORS}; {_LATENT}",
    "ministral": _SOME_WINDOWS,
    "mixtral": _EXPERTS,
    "olmo": "its norms have no weights",
    "olmo2": f"{_POST_NORM}; {_NORMED_HEADS}",
    "olmo3": f"{_POST_NORM}; {_NORMED_HEADS}; {_SOME_WINDOWS}",
    "phi": f"{_SIDE_BY_SIDE}; {_PART_ROTATED}",
    "phi3": "its queries, keys and values are one projection, its gate and up projections another",
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": f"{_EXPERTS}; {_NORMED_HEADS}",
    "smollm3": "every fourth of its layers has no RoPE",
    "stablelm": _PART_ROTATED,
    "starcoder2": "its feed-forward has no gate, and its norms subtract the mean",
}
"""What another family computes that a Llama does not, for those that people ask for."""


def foreign(config: Mapping[str, Any]) -> str | None:
    """Return the model type that a ``config.json`` names, where it is none that is taken; None also where it names
    none."""
    name = config.get("model_type")
    return name if isinstance(name, str) and name not in TAKEN else None


def by_class(config: Mapping[str, Any]) -> str:
    """Return a note on a model that transformers' class computes, or whose folder names code for it; else nothing."""
    if config.get("auto_map") and (config.get("model_type") in SHAPES or foreign(config) is not None):
        return f"; its folder's own code (auto_map) is not run: it is read as transformers' {config.get('model_type')}"
    return f", by transformers' class for {config['model_type']}" if foreign(config) is not None else ""


def read_config(source: str | Path, **hub_arguments: Any) -> PreTrainedConfig:
    """Return the configuration of a folder or hub id, never running code from it.

    A Baichuan2-7B, which transformers does not know, is read as the Llama it becomes, see
    :mod:`tape_ds.model.baichuan`; a GPT-J with the RoPE parameters that transformers' own configuration lacks.

    Raises:
        UserError: nothing there, no configuration in it, or a Baichuan that cannot become a Llama.
    """
    from transformers import AutoConfig, PreTrainedConfig

    from tape_ds.model import baichuan, gptj_configuration

    try:
        content, _ = PreTrainedConfig.get_config_dict(source, **hub_arguments)
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
        if baichuan.recognises(content):
            return baichuan.llama_config(content, str(source))
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **hub_arguments)
        config = gptj_configuration.with_rope(config)
    except UserError:
        raise  # a TAPE folder whose fields are wrong, or a Baichuan: it says which
    except Exception as error:  # of a file of another form transformers raises whatever it meets
        raise_if_any(paths.check_fetched("model", source))
        reason = " ".join(str(error).split())[:300]
        remedy = "give a folder saved by save_pretrained, a hub id that can be reached, or a .gguf file"
        raise UserError(Problem("model", str(source), f"no configuration could be read ({reason})", remedy)) from error
    if not check_llama_shaped(config):
        rope = trained_rope.read(content, str(source))
        config.rope_parameters, config.max_position_embeddings = rope.stated, rope.native_length
    return config


def has_llamas_names(config: PreTrainedConfig) -> bool:
    """Return whether a model of this type becomes one whose parameters are Llama's, name for name."""
    return config.model_type in (*SHAPES, BAICHUAN)


def check_llama_shaped(config: PreTrainedConfig) -> list[Problem]:
    """What keeps an architecture from being a Llama: one problem listing every difference, or none."""
    differences, remedies = [], []
    if not has_llamas_names(config):
        reason = f" ({REASONS[config.model_type]})" if config.model_type in REASONS else ""
        differences.append(f"model_type is {config.model_type!r}{reason}, not one of {', '.join(SHAPES)}")
    differences += [f"it has no {name}" for name in _NEEDED if getattr(config, name, None) is None]
    if getattr(config, "hidden_act", "silu") != "silu":
        differences.append(f"its activation is {config.hidden_act!r}, not 'silu'")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in scaling.available():
        differences.append(f"its rope_type is {rope['rope_type']!r}, not one of {', '.join(scaling.available())}")
    if differences:
        remedies.append("use a Llama-shaped checkpoint")
    if window := _window(config):
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


def _window(config: PreTrainedConfig) -> int | None:
    """Return a window that some layer attends within; a configuration may name one that no layer uses."""
    window, layers = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    return None if layers and all(layer == "full_attention" for layer in layers) else window
