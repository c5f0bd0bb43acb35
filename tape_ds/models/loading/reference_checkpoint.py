"""Checkpoints of the published TAPE code load as our models.

Apart from :mod:`tape_ds.models.convert`, because only this knows another program's names, sizes and dead parameters.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_ds.encodings import scaling
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading.strict import fill, require_exact

logger = logging.getLogger(__name__)

Config = Mapping[str, Any]

_TAPE_NAMES = {
    ".pe.x_proj.": ".position.gate.",
    ".pe.up_proj.": ".position.expand.",
    ".pe.down_proj.": ".position.contract.",
    ".post_attention_linear.": ".position.attend.",
}
_SEPARATE_NAMES = {
    ".pe.x_proj.": ".position.gate.",
    ".pe.up_projs.0.": ".position.expand.cos.",
    ".pe.up_projs.1.": ".position.expand.sin.",
    ".pe.down_projs.0.": ".position.contract.cos.",
    ".pe.down_projs.1.": ".position.contract.sin.",
    ".post_attention_linears.0.": ".position.attend.cos.",
    ".post_attention_linears.1.": ".position.attend.sin.",
}
_FIRE_NAMES = {
    ".self_attn.rotary_emb.c": ".position.network.curvature",
    ".self_attn.rotary_emb.L_multiplier": ".position.network.multiplier",
    ".self_attn.rotary_emb.mlp.0.weight": ".position.network.weight_in",
    ".self_attn.rotary_emb.mlp.0.bias": ".position.network.bias_in",
    ".self_attn.rotary_emb.mlp.2.weight": ".position.network.weight_out",
    ".self_attn.rotary_emb.mlp.2.bias": ".position.network.bias_out",
}
_FIRE_FROZEN = {".self_attn.rotary_emb.init_L": "threshold"}
_T5_NAMES = {".self_attn.relative_attention_bias.": ".position.table."}
# Tables that follow from the configuration, where a checkpoint holds them.
_TABLES = (
    ".self_attn.alibi",
    ".rotary_emb.scale",
    ".rotary_emb.cos_cached",
    ".rotary_emb.sin_cached",
    ".rotary_emb.freqs_cached",
    ".rotary_emb.scale_cached",
)


def _theta(config: Config) -> float:
    return float(config.get("rope_theta") or 10_000.0)


def _fixed_base(config: Config) -> dict[str, Any]:
    """Its rope and related encodings read no ``rope_theta``; linear scaling is common to both."""
    given = config.get("rope_scaling")
    if given and given.get("type") != "linear":
        remedy = "only linear scaling is reproduced; load without it and set rope_parameters of our own"
        raise UserError(Problem("config.rope_scaling", given, "not reproduced", remedy))
    return _linear({**config, "rope_theta": 10_000.0})


def _linear(config: Config) -> dict[str, Any]:
    """Its TAPE takes any scaling as linear."""
    given = config.get("rope_scaling")
    if not given:
        return {"rope_type": "default", "rope_theta": _theta(config)}
    return {"rope_type": "linear", "rope_theta": _theta(config), "factor": float(given["factor"])}


def _yarn(config: Config) -> dict[str, Any]:
    """It ignores the factor given and takes the window over the original one, rounded up."""
    window = config["original_max_position_embeddings"]
    factor = float(math.ceil(config["max_position_embeddings"] / window))
    return {
        "rope_type": "yarn",
        "rope_theta": _theta(config),
        "factor": factor,
        "original_max_position_embeddings": window,
    }


def _yarn_in_name(config: Config) -> dict[str, Any]:
    """Return its TAPE with YaRN scales RoPE in the first forward of a new longest text only, and not within the window:
    what remains is plain RoPE, and YaRN's factor on cosine and sine."""
    given = _yarn(config)
    attention_factor = 0.1 * math.log(given["factor"]) + 1.0
    return {**given, "factor": 1.0, "attention_factor": attention_factor}


def _tape_options(**fixed: Any) -> Callable[[Config], dict[str, Any]]:
    def options(config: Config) -> dict[str, Any]:
        rank = {"rank": config["position_size"]} if fixed["feed_forward"] else {}
        return {"attention_update": "scale", **fixed, **rank}

    return options


def _bucket_options(config: Config) -> dict[str, Any]:
    return {
        "buckets": config["relative_attention_num_buckets"],
        "max_distance": config["relative_attention_max_distance"],
    }


class _Variant(NamedTuple):
    """One of that code's model files."""

    encoding: str
    rope_parameters: Callable[[Config], dict[str, Any]] = _fixed_base
    options: Callable[[Config], dict[str, Any] | None] = lambda config: None
    names: Mapping[str, str] = {}
    """Parts of its parameters' names -> ours."""
    needs: tuple[str, ...] = ()
    """Fields of its configuration, other than the sizes."""
    frozen: Mapping[str, str] = {}
    """Parameters that were never trained, one number in every layer -> our options."""


_YARN_FIELDS = ("original_max_position_embeddings",)
_RANK = ("position_size",)
_VARIANTS = {
    "alibi": _Variant("alibi"),
    "fire": _Variant("fire", names=_FIRE_NAMES, frozen=_FIRE_FROZEN),
    "nope": _Variant("nope"),
    "randrope": _Variant("randpe"),
    "rope": _Variant("rope"),
    "sincos": _Variant("sincos"),
    "t5rb": _Variant(
        "t5",
        options=_bucket_options,
        names=_T5_NAMES,
        needs=("relative_attention_num_buckets", "relative_attention_max_distance"),
    ),
    "xpos": _Variant("xpos"),
    "yarn": _Variant("yarn", _yarn, needs=_YARN_FIELDS),
    "adape": _Variant("tape", _linear, _tape_options(feed_forward=True), _TAPE_NAMES, _RANK),
    "adamlp": _Variant("tape", _linear, _tape_options(attention_update="off", feed_forward=True), _TAPE_NAMES, _RANK),
    "adattention": _Variant("tape", _linear, _tape_options(feed_forward=False), _TAPE_NAMES),
    "adatensor": _Variant("tape", _linear, _tape_options(feed_forward=True, form="separate"), _SEPARATE_NAMES, _RANK),
    "adavector": _Variant("tape", _linear, _tape_options(feed_forward=True, form="vector"), _TAPE_NAMES, _RANK),
    "adawoeq": _Variant("tape", _linear, _tape_options(feed_forward=True, form="flattened"), _TAPE_NAMES, _RANK),
    "adayarn": _Variant("tape", _yarn_in_name, _tape_options(feed_forward=True), _TAPE_NAMES, (*_RANK, *_YARN_FIELDS)),
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


def from_reference(state_dict: Mapping[str, Tensor], config: Config, variant: str) -> TapeForCausalLM:
    """Load weights of the published TAPE code (VITA-Group/TAPE, ``models/llama/<variant>.py``).

    Args:
        state_dict: tensors under that code's names.
        config: that code's configuration as a dictionary; ``position_size`` is the rank.
        variant: the name of its model file: "adape" is TAPE, "randrope" is RandPE, "t5rb" is T5; "adalibi" computes
            NaN there and cannot be had.

    What differs is translated: its ``post_attention_linear`` acts as the sums of its rows (``scale``); the last layer's
    position parameters, which nothing reads, are dropped by name; its stored frequencies are recomputed, and must be
    those of the configuration. Where ``vocab_size`` differs from the rows of the weights (32,000 and 32,001: a
    ``[PAD]`` that its training adds), the weights decide, and the log names both. ``randrope`` drew new positions
    in every layer, which is not reproduced.
    """
    ours = _reference_config(state_dict, config, variant)
    with torch.device("meta"):
        model = TapeForCausalLM(ours)
    return fill(model, _reference_tensors(state_dict, ours, variant), variant)


def _reference_config(state_dict: Mapping[str, Tensor], config: Config, variant: str) -> TapeConfig:
    if variant not in _VARIANTS:
        raise UserError(Problem("variant", variant, "unknown", f"one of: {', '.join(sorted(_VARIANTS))}"))
    kind = _VARIANTS[variant]
    needed = {*_REFERENCE_FIELDS, *kind.needs} - {"bos_token_id", "eos_token_id", "tie_word_embeddings"}
    remedy = "give the configuration that was saved with these weights"
    raise_if_any([Problem(f"config.{name}", None, "missing", remedy) for name in sorted(needed - config.keys())])
    config = {**config, "vocab_size": _rows(state_dict, config)}
    return TapeConfig(
        position_encoding=kind.encoding,
        position_options={**(kind.options(config) or {}), **_frozen_options(state_dict, config, variant)} or None,
        rope_parameters=kind.rope_parameters(config),
        **{name: config[name] for name in _REFERENCE_FIELDS if name in config},
    )


def _rows(state_dict: Mapping[str, Tensor], config: Config) -> int:
    """Return rows of the vocabulary: those of the embeddings; tensors that disagree among themselves are found
    later."""
    declared = config["vocab_size"]
    table = state_dict.get("model.embed_tokens.weight")
    rows = declared if table is None else len(table)
    if rows != declared:
        logger.warning("the weights have %s rows, config.vocab_size is %s: %s are used", rows, declared, rows)
    return rows


def _frozen_options(state_dict: Mapping[str, Tensor], config: Config, variant: str) -> dict[str, float]:
    options = {}
    for suffix, option in _VARIANTS[variant].frozen.items():
        names = [f"model.layers.{layer}{suffix}" for layer in range(config["num_hidden_layers"])]
        require_exact(variant, [name for name in names if name not in state_dict], (), ())
        found = {float(state_dict[name]) for name in names}
        if len(found) > 1:
            remedy = f"only one {option} for all layers can be expressed"
            raise UserError(Problem(suffix, sorted(found), "differs between layers", remedy))
        options[option] = found.pop()
    return options


def _reference_tensors(state_dict: Mapping[str, Tensor], config: TapeConfig, variant: str) -> dict[str, Tensor]:
    """Return its tensors under our names, without those that nothing reads."""
    unscaled = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}
    frequencies, _ = scaling.frequencies(unscaled, config.head_dim)
    last = f"model.layers.{config.num_hidden_layers - 1}."
    tensors = {}
    for name, tensor in state_dict.items():
        dead = name.startswith(last) and (".pe." in name or ".post_attention_linear" in name)
        if name.endswith("rotary_emb.inv_freq"):
            _check_frequencies(name, tensor, torch.from_numpy(frequencies))
            continue
        if dead or name.endswith((*_TABLES, *_VARIANTS[variant].frozen)):
            continue
        if ".post_attention_linear" in name:
            tensor = tensor.sum(dim=1)
        for theirs, new in _VARIANTS[variant].names.items():
            name = name.replace(theirs, new)
        tensors[name] = tensor[None] if tensor.dim() == 0 else tensor
    return tensors


def _check_frequencies(name: str, stored: Tensor, expected: Tensor) -> None:
    """Refuse stored frequencies that were trained or have another base; rounding to bf16 is fine."""
    if stored.shape != expected.shape or not torch.allclose(stored.double(), expected, rtol=1e-2, atol=0):
        remedy = "give the rope_theta of these weights; trained frequencies cannot be loaded"
        raise UserError(Problem(name, stored.tolist(), "not the frequencies of config.rope_theta", remedy))
