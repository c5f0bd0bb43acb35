"""Which model families can be extended, and why another one cannot.

A family is taken in when its blocks compute what a Llama's do, name for name: :data:`SHAPES`. Everything that differs
is found in the configuration, before any weight is read, and told together with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds.errors import Problem, UserError
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
TAKEN = (*SHAPES, BAICHUAN, "gptj", "tape_gptj")
"""Every model type that can be extended or fine-tuned."""

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
REASONS = {
    "falcon": "it runs attention and feed-forward side by side, on one fused projection",
    "gemma": _GEMMA,
    "gemma2": f"{_GEMMA}; it caps its scores",
    "gemma3_text": f"{_GEMMA}; {_NORMED_HEADS}",
    "gpt2": "it learns a vector for every position, which no rotary angle replaces",
    "gpt_neox": "it runs attention and feed-forward side by side, and rotates a part of each head",
    "ministral": "some of its layers attend within a sliding window",
    "mixtral": _EXPERTS,
    "olmo2": f"it norms what a block gives, not what it takes; {_NORMED_HEADS}",
    "phi": "it runs attention and feed-forward side by side, and rotates a part of each head",
    "phi3": "its queries, keys and values are one projection, its gate and up projections another",
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": f"{_EXPERTS}; {_NORMED_HEADS}",
    "stablelm": "it rotates a part of each head",
}
"""What another family computes that a Llama does not, for those that people ask for."""


def foreign(config: Mapping[str, Any]) -> str | None:
    """Return the model type that a ``config.json`` names, where it is none that is taken; None also where it names
    none."""
    name = config.get("model_type")
    return name if isinstance(name, str) and name not in TAKEN else None


def own_code(config: Mapping[str, Any]) -> str:
    """Return a note on a model type of transformers whose folder names code for it; empty where there is none."""
    if config.get("auto_map") and config.get("model_type") in SHAPES:
        return f"; its folder's own code (auto_map) is not run: it is read as transformers' {config['model_type']}"
    return ""


def read_config(source: str | Path, **hub_arguments: Any) -> PreTrainedConfig:
    """Return the configuration of a folder or hub id, never running code from it.

    A Baichuan2-7B, which transformers does not know, is read as the Llama it becomes, see
    :mod:`tape_ds.model.baichuan`.

    Raises:
        UserError: nothing there, no configuration in it, or a Baichuan that cannot become a Llama.
    """
    from transformers import AutoConfig, PreTrainedConfig

    from tape_ds.model import baichuan

    try:
        content, _ = PreTrainedConfig.get_config_dict(source, **hub_arguments)
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
        if baichuan.recognises(content):
            return baichuan.llama_config(content, str(source))
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **hub_arguments)
    except UserError:
        raise  # a TAPE folder whose fields are wrong, or a Baichuan: it says which
    except Exception as error:  # of a file of another form transformers raises whatever it meets
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
    differences = []
    if not has_llamas_names(config):
        reason = f" ({REASONS[config.model_type]})" if config.model_type in REASONS else ""
        differences.append(f"model_type is {config.model_type!r}{reason}, not one of {', '.join(SHAPES)}")
    differences += [f"it has no {name}" for name in _NEEDED if getattr(config, name, None) is None]
    if getattr(config, "hidden_act", "silu") != "silu":
        differences.append(f"its activation is {config.hidden_act!r}, not 'silu'")
    differences += _windows(config)
    if getattr(config, "quantization_config", None) is not None:
        differences.append("its weights are quantised")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in scaling.available():
        differences.append(f"its rope_type is {rope['rope_type']!r}, not one of {', '.join(scaling.available())}")
    if not differences:
        return []
    remedy = "use a Llama-shaped checkpoint"
    return [Problem("model", config.model_type, "not Llama-shaped: " + "; ".join(differences), remedy)]


def _windows(config: PreTrainedConfig) -> list[str]:
    """Return a window that some layer attends within; a configuration may name one that no layer uses."""
    window, layers = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if not window or (layers and all(layer == "full_attention" for layer in layers)):
        return []
    return [f"it attends within a sliding window of {window}"]
