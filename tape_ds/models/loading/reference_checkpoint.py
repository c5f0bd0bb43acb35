"""Load checkpoints of the published TAPE code as our models: its names, sizes and dead parameters."""

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_ds.encodings import scaling
from tape_ds.encodings.scaling import WINDOW
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.files.exact import fill, require_exact
from tape_ds.models.llama import TapeForCausalLM

logger = logging.getLogger(__name__)

_NAMES = {
    ".pe.x_proj.": ".position.gate.",
    ".pe.up_proj.": ".position.expand.",
    ".pe.down_proj.": ".position.contract.",
    ".post_attention_linear.": ".position.attend.",
    ".pe.up_projs.0.": ".position.expand.cos.",
    ".pe.up_projs.1.": ".position.expand.sin.",
    ".pe.down_projs.0.": ".position.contract.cos.",
    ".pe.down_projs.1.": ".position.contract.sin.",
    ".post_attention_linears.0.": ".position.attend.cos.",
    ".post_attention_linears.1.": ".position.attend.sin.",
    ".self_attn.rotary_emb.c": ".position.network.curvature",
    ".self_attn.rotary_emb.L_multiplier": ".position.network.multiplier",
    ".self_attn.rotary_emb.mlp.0.weight": ".position.network.weight_in",
    ".self_attn.rotary_emb.mlp.0.bias": ".position.network.bias_in",
    ".self_attn.rotary_emb.mlp.2.weight": ".position.network.weight_out",
    ".self_attn.rotary_emb.mlp.2.bias": ".position.network.bias_out",
    ".self_attn.relative_attention_bias.": ".position.table.",
}
"""Parts of the names of its parameters -> ours."""
# FIRE's threshold: a parameter there that is never trained, an option here
_THRESHOLD = ".self_attn.rotary_emb.init_L"
# tables that follow from the configuration, which a checkpoint may hold
_TABLES = (
    ".self_attn.alibi",
    ".rotary_emb.scale",
    ".rotary_emb.cos_cached",
    ".rotary_emb.sin_cached",
    ".rotary_emb.freqs_cached",
    ".rotary_emb.scale_cached",
)
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
)
_OPTIONAL = ("bos_token_id", "eos_token_id", "tie_word_embeddings")


class _Variant(NamedTuple):
    """One of that code's model files."""

    encoding: str
    options: Mapping[str, Any] = {}
    fields: Mapping[str, str] = {}
    """Our options -> fields of its configuration."""
    yarn: bool = False
    is_tape: bool = False
    """Whether it computes any scaling as linear and reads ``rope_theta``; the others do neither."""
    has_threshold: bool = False


_RANK = {"rank": "position_size"}
_BUCKETS = {
    "buckets": "relative_attention_num_buckets",
    "max_distance": "relative_attention_max_distance",
}
_SCALE = {"attention_update": "scale"}
"""Its ``post_attention_linear`` acts as the sums of its rows."""
_VARIANTS = {
    "alibi": _Variant("alibi"),
    "fire": _Variant("fire", has_threshold=True),
    "nope": _Variant("nope"),
    "randrope": _Variant("randpe"),
    "rope": _Variant("rope"),
    "sincos": _Variant("sincos"),
    "t5rb": _Variant("t5", fields=_BUCKETS),
    "xpos": _Variant("xpos"),
    "yarn": _Variant("yarn", yarn=True),
    "adape": _Variant("tape", _SCALE, _RANK, is_tape=True),
    "adamlp": _Variant("tape", {"attention_update": "off"}, _RANK, is_tape=True),
    "adattention": _Variant("tape", {**_SCALE, "feed_forward": False}, is_tape=True),
    "adatensor": _Variant("tape", {**_SCALE, "form": "separate"}, _RANK, is_tape=True),
    "adavector": _Variant("tape", {**_SCALE, "form": "vector"}, _RANK, is_tape=True),
    "adawoeq": _Variant("tape", {**_SCALE, "form": "flattened"}, _RANK, is_tape=True),
    "adayarn": _Variant("tape", _SCALE, _RANK, yarn=True, is_tape=True),
}


def from_reference(
    state_dict: Mapping[str, Tensor], config: Mapping[str, Any], variant: str
) -> TapeForCausalLM:
    """Return the model of weights of the published TAPE code (VITA-Group/TAPE, ``models/llama/<variant>.py``).

    Args:
        state_dict: tensors under that code's names.
        config: that code's configuration as a dictionary; ``position_size`` is the rank.
        variant: the name of its model file: "adape" is TAPE, "randrope" is RandPE, "t5rb" is T5; "adalibi" computes
            NaN there and is not supported.

    The last layer's position parameters, which nothing reads, are dropped by name; stored frequencies are recomputed,
    and must be those of the configuration. If ``vocab_size`` differs from the rows of the weights (32,000 and 32,001: a
    ``[PAD]`` that its training adds), the weights decide, and the log names both. ``randrope`` drew new positions in
    every layer, which is not reproduced.
    """
    if variant not in _VARIANTS:
        raise UserError(
            Problem("variant", variant, "unknown", f"one of: {', '.join(sorted(_VARIANTS))}")
        )
    kind = _VARIANTS[variant]
    needed = {*_SIZES, *kind.fields.values(), *([WINDOW] if kind.yarn else [])}
    remedy = "give the configuration that was saved with these weights"
    raise_if_any(
        [
            Problem(f"config.{name}", None, "missing", remedy)
            for name in sorted(needed - config.keys())
        ]
    )
    sizes = {name: config[name] for name in (*_SIZES, *_OPTIONAL) if name in config}
    table = state_dict.get("model.embed_tokens.weight")
    if table is not None and len(table) != sizes["vocab_size"]:
        named = sizes["vocab_size"]
        sizes["vocab_size"] = len(table)
        logger.warning(
            "the weights have %s rows, config.vocab_size is %s: %s are used",
            len(table),
            named,
            len(table),
        )

    options = {**kind.options, **{own: config[field] for own, field in kind.fields.items()}}
    if kind.has_threshold:
        names = [
            f"model.layers.{layer}{_THRESHOLD}" for layer in range(config["num_hidden_layers"])
        ]
        require_exact(variant, [name for name in names if name not in state_dict], (), ())
        thresholds = {float(state_dict[name]) for name in names}
        if len(thresholds) > 1:
            remedy = "only one threshold for all layers can be expressed"
            raise UserError(
                Problem(_THRESHOLD, sorted(thresholds), "differs between layers", remedy)
            )
        options["threshold"] = thresholds.pop()

    given = config.get("rope_scaling")
    theta = float(config.get("rope_theta") or 10_000.0)
    rope: dict[str, Any] = {"rope_type": "default"}
    if kind.yarn:
        # It ignores the factor given and takes the window over the original one, rounded up.
        factor = float(math.ceil(config["max_position_embeddings"] / config[WINDOW]))
        rope = {"rope_type": "yarn", "factor": factor, WINDOW: config[WINDOW]}
        if kind.is_tape:
            # It scales RoPE in the first forward of a new longest text only, and not within the window: plain RoPE
            # remains, and YaRN's factor on cosine and sine.
            rope |= {"factor": 1.0, "attention_factor": scaling.yarn_attention(factor)}
    elif given and (kind.is_tape or given.get("type") == "linear"):
        rope = {"rope_type": "linear", "factor": float(given["factor"])}
    elif given:
        remedy = (
            "only linear scaling is reproduced; load without it and set rope_parameters of our own"
        )
        raise UserError(Problem("config.rope_scaling", given, "not reproduced", remedy))
    rope["rope_theta"] = theta if kind.is_tape or kind.yarn else 10_000.0

    ours = TapeConfig(
        position_encoding=kind.encoding,
        position_options=options or None,
        rope_parameters=rope,
        **sizes,
    )
    with torch.device("meta"):
        model = TapeForCausalLM(ours)
    return fill(model, _renamed(state_dict, ours), variant)


def _renamed(state_dict: Mapping[str, Tensor], config: TapeConfig) -> dict[str, Tensor]:
    """Return the tensors under our names, without those that nothing reads."""
    unscaled = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}
    frequencies = torch.from_numpy(scaling.frequencies(unscaled, config.head_dim)[0])
    last = f"model.layers.{config.num_hidden_layers - 1}."
    tensors = {}
    for name, tensor in state_dict.items():
        if name.endswith("rotary_emb.inv_freq"):
            # rounded to bf16 they are the same; trained ones, or those of another base, are not
            alike = tensor.shape == frequencies.shape and torch.allclose(
                tensor.double(), frequencies, rtol=1e-2, atol=0
            )
            if not alike:
                remedy = (
                    "give the rope_theta of these weights; trained frequencies cannot be loaded"
                )
                raise UserError(
                    Problem(
                        name, tensor.tolist(), "not the frequencies of config.rope_theta", remedy
                    )
                )
            continue
        dead = name.startswith(last) and (".pe." in name or ".post_attention_linear" in name)
        if dead or name.endswith((*_TABLES, _THRESHOLD)):
            continue
        if ".post_attention_linear" in name:
            tensor = tensor.sum(dim=1)
        for theirs, new in _NAMES.items():
            name = name.replace(theirs, new)
        tensors[name] = tensor[None] if tensor.dim() == 0 else tensor
    return tensors
