"""Which decoders of transformers are extended by their own class, and the configuration of the extended model.

The rules use transformers' own facts about a family (layer types, class, RoPE parameters), so they hold for families
that it gains later.
"""

import copy
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tape_ds import attention
from tape_ds.encodings import scaling, trained_rope
from tape_ds.encodings.trained_rope import FIXED_BASE, FULL, KEPT, OF_THE_CLASS, of_full
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.gptj import ScaledGPTJConfig

ENCODING = "rope"
"""The one encoding of these models: their own."""
PLAIN = "method: lora, full, norms, theta, yarn, linear, ntk, dynamic"
"""Methods that need nothing of this project inside a model."""
ATTENTION = "tape_ds"
"""Name of this project's attention in transformers' tables; ``tape_ds_sdpa`` is the same by the backend ``sdpa``."""
SCORE_SCALE = "mscale_all_dim"
"""RoPE parameter of DeepSeek's classes from which their attention takes its factor on scores."""
_KEPT_KEYS = (*OF_THE_CLASS, "mscale", SCORE_SCALE)
"""RoPE parameters that an extension does not change."""
_CHANGED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
_ATTENTION_LAYERS = ("full_attention", "sliding_attention")
_BOTH = "hybrid"
"""Kind of a layer that attends and carries a state."""
WITHOUT_ATTENTION = ("linear_attention", "conv", "mlp", "moe")
STATE_LAYERS = ("linear_attention", "conv", _BOTH)
"""Kinds of layers that carry a state from token to token: recurrences and short convolutions."""
_LAYERS = (*_ATTENTION_LAYERS, *WITHOUT_ATTENTION, _BOTH)
_OTHER_LAYERS = {
    "chunked_attention": "a query sees its own chunk",
    "compressed_sparse_attention": "keys are merged, and an indexer picks those of a query",
    "heavily_compressed_attention": "keys are merged",
    "hybrid_sliding": "short convolutions in attention with a window",
    "indexed_attention": "an indexer scores all keys, and a query attends to the best of them",
    "minimax_m3_sparse": "an indexer picks the blocks of keys of a query",
}
"""Kinds of layers that are not computed here -> their computation, for messages."""
ROTATED_WINDOWS = ("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1")
"""Families whose layers have positions only where they have a window."""
_OTHERWISE = {
    "doge": "its attention adds a learned mask to the causal one",
    "dory": "its layers run several times, over a cache with which transformers itself does not generate",
    "llama4_text": "its layers attend within chunks",
}
"""Reasons against families that the rules below do not find."""


def filled_in(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a configuration with what its class fills in late, or reads as missing: the size of a head, the heads of
    keys and values; and Hunyuan's fixed base as plain RoPE."""
    if config.sub_configs:
        return config
    # the attribute may be refused: Gemma 4's differs between layers
    fields = config.to_dict()
    heads = fields.get("num_attention_heads")
    width = fields.get("hidden_size")
    if fields.get("head_dim", heads) is None and heads and width:
        config.head_dim = width // heads
    if fields.get("num_key_value_heads", heads) is None and heads:
        config.num_key_value_heads = heads
    rope = fields.get("rope_parameters") or {}
    if config.model_type in FIXED_BASE and rope.get("rope_type") == "dynamic" and rope.get("alpha"):
        own = trained_rope.read(config.to_dict(), config.name_or_path or config.model_type)
        kept = {key: rope[key] for key in OF_THE_CLASS if key in rope}
        config.rope_parameters = dict(own.parameters) | kept
    return config


def check(native: PreTrainedConfig) -> list[Problem]:
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(native), None)
    reasons = []
    remedy = "give a decoder of transformers that attends with rotary positions, "
    remedy += "or a hybrid of attention and recurrences"
    if kind is None:
        reasons.append("transformers has no language model of this type")
        if native.sub_configs:
            remedy = _of_wrapper(native)
    else:
        if native.sub_configs:
            reasons.append(
                f"it is made of several models ({', '.join(native.sub_configs)}), not a decoder alone"
            )
            remedy = _of_wrapper(native)
        elif not carries_state(native) and not of_full(
            getattr(native, "rope_parameters", None) or {}
        ):
            wrong = "its layers that see everything have no rotary positions (rope_parameters) that could be scaled"
            reasons.append(wrong)
        if native.model_type in _OTHERWISE:
            reasons.append(_OTHERWISE[native.model_type])
        elif not kind._can_set_attn_implementation():
            reasons.append("its class computes attention by code that takes no other")
        kinds = layer_kinds(native)
        if others := sorted(set(kinds) - set(_LAYERS)):
            computed = [f"{name}: {_OTHER_LAYERS.get(name, 'not known here')}" for name in others]
            reasons.append(f"it has layers of other kinds ({'; '.join(computed)})")
        elif carries_state(native):
            if not {*_ATTENTION_LAYERS, _BOTH} & set(kinds):
                reasons.append("none of its layers is attention")
        elif kind._is_stateful:
            reasons.append("its layers keep a state, which sees neither documents nor padding")
        if getattr(native, "use_bidirectional_attention", None) in (True, "all"):
            reasons.append("its tokens see later ones (use_bidirectional_attention)")
        if getattr(native, "attention_dropout", None):
            name = native.attribute_map.get("attention_dropout", "attention_dropout")
            wrong = f"{name} is {native.attention_dropout}, which no backend computes"
            reasons.append(f"{wrong}: set it to 0 in config.json")
        if getattr(native, "output_router_logits", False):
            reasons.append(
                "output_router_logits adds a loss that is not computed here: set it to false in config.json"
            )
        if getattr(native, "quantization_config", None) is not None:
            before = "give the model as it was before"
            reasons.append(
                f"its weights are quantised: {before} (load_in_4bit: true trains adapters on that)"
            )
    if not reasons:
        return []
    name = native.name_or_path or native.model_type
    return [Problem("model", name, f"{native.model_type}: {'; '.join(reasons)}", remedy)]


def layer_kinds(native: PreTrainedConfig) -> list[str]:
    """Return transformers' name of what each layer computes; empty where all are full attention."""
    return list(getattr(native, "layer_types", None) or ())


def carries_state(native: PreTrainedConfig) -> bool:
    """Return whether a family is a hybrid: layers that carry a state from token to token, among others."""
    return bool(set(layer_kinds(native)) & set(STATE_LAYERS))


def _of_wrapper(native: PreTrainedConfig) -> str:
    """Return the remedy for a model that holds a decoder among others, such as one with pictures."""
    text = native.sub_configs.get("text_config")
    inner = getattr(native, "text_config", None)
    if text is None or not isinstance(inner, PreTrainedConfig):
        return "give a decoder of transformers alone"
    if found := check(inner):
        return f"give another model: its text model cannot be extended either ({found[0].wrong})"
    remedy = "give a folder of its text decoder alone; the whole model may compute something else of text "
    return f"{remedy}(docs/extending.md, Models with pictures)"


def recomputes(native: PreTrainedConfig) -> bool:
    return bool(MODEL_FOR_CAUSAL_LM_MAPPING[type(native)].supports_gradient_checkpointing)


def changes_logits(native: PreTrainedConfig) -> bool:
    """Return whether logits are more than the output head's product."""
    two_maps = native.model_type == "modernbert-decoder"
    return two_maps or any(
        getattr(native, name, None) not in (None, 1, 1.0) for name in _CHANGED_LOGITS
    )


def needs(native: PreTrainedConfig) -> set[str]:
    """Return what the attention of a family needs beyond causal attention, by the argument of ``attend``."""
    window = getattr(native, "sliding_window", None)
    layers = getattr(native, "layer_types", None)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(native)]
    found = {
        "window": bool(window) and (not layers or "sliding_attention" in layers),
        "softcap": bool(getattr(native, "attn_logit_softcapping", None)),
        "sinks": "s_aux="
        in inspect.getsource(sys.modules[kind.__module__]),  # as transformers calls them
    }
    return {name for name, needed in found.items() if needed}


def configure(
    native: PreTrainedConfig,
    *,
    position_encoding: str = ENCODING,
    position_options: Mapping[str, Any] | None = None,
    state_dtype: str | None = None,
    attention_backend: str = "auto",
    rope_parameters: Mapping[str, Any] | None = None,
    max_position_embeddings: int | None = None,
) -> PreTrainedConfig:
    """Return a configuration of the family's own class, with this RoPE (of the layers that see everything) and this
    length. ``position_options`` and ``state_dtype`` are refused: these families have neither."""
    problems = []
    if position_encoding != ENCODING:
        problems.append(Problem("position_encoding", position_encoding, only_rope(native), PLAIN))
    for field, value in (("position_options", position_options), ("state_dtype", state_dtype)):
        if value:
            problems.append(
                Problem(field, value, f"a {native.model_type} has none", "leave it out")
            )
    problems += attention.check_backend(attention_backend)
    raise_if_any(problems)
    config = copy.deepcopy(native)
    config._attn_implementation = (
        ATTENTION if attention_backend == "auto" else f"{ATTENTION}_{attention_backend}"
    )
    if rope_parameters is not None:
        config.rope_parameters = with_rope(native, rope_parameters)
        if "rope_theta" in config.to_dict():
            # a second place, of Bailing's class, which must not contradict the first
            config.rope_theta = of_full(config.rope_parameters)["rope_theta"]
    if max_position_embeddings is not None and not scaling.is_dynamic(rope_parameters or {}):
        # which transformers' dynamic scaling counts from
        config.max_position_embeddings = max_position_embeddings
    return config


def only_rope(native: PreTrainedConfig) -> str:
    """Return why a family takes no other encoding, for messages."""
    window = ""
    if "window" in needs(native):
        window = f" with sliding_window = {getattr(native, 'sliding_window', None)}"
    return f"a {native.model_type}{window} is extended by its own class, whose positions are RoPE"


def with_rope(native: PreTrainedConfig, rope_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a family's ``rope_parameters`` with others for the layers that see everything: the share of a head that is
    rotated and the RoPE of layers with a window stay."""
    rope_parameters = of_full(rope_parameters)
    kind = rope_parameters["rope_type"]
    found = _accepted(native, rope_parameters)
    if isinstance(found, dict):
        return found
    if unscaled := _unscaled(native):
        raise UserError(Problem("rope_parameters.rope_type", kind, unscaled, "rope_parameters: {}"))
    own = trained_rope.read(native.to_dict(), native.name_or_path or native.model_type)
    length = 2 * int(own.reach)
    computed = []
    for other in ("linear", "ntk", "yarn"):
        change = {"rope_type": other}
        fits = other != kind and not list(trained_rope.check_change(own, change, length))
        if fits and isinstance(_accepted(native, trained_rope.extended(own, change, length)), dict):
            computed.append(other)
    wrong = f"transformers' {native.model_type} does not compute it: {found}"
    remedy = "rope_parameters: {}"
    if computed:
        remedy = f"rope_parameters.rope_type: {', '.join(computed)}"
    raise UserError(Problem("rope_parameters.rope_type", kind, wrong, remedy))


def _accepted(native: PreTrainedConfig, rope_parameters: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the ``rope_parameters`` of :func:`with_rope` that a family's class accepts, else its reason against
    them."""
    own = native.rope_parameters
    before = of_full(own)
    reason = "no form of it"
    for form in _forms(native, rope_parameters):
        changed = form | {key: before[key] for key in _KEPT_KEYS if key in before}
        # transformers computes the factor of this scaling from it
        if SCORE_SCALE in changed:
            changed.pop("attention_factor", None)
        if changed == dict(before):
            return dict(own)
        if unscaled := _unscaled(native):
            return unscaled
        config = copy.deepcopy(native)
        config.rope_parameters = {**own, FULL: changed} if FULL in own else changed
        try:
            config.validate_rope()
        except UserError:  # a GPT-J's
            raise
        except (ValueError, KeyError, TypeError) as error:
            reason = str(error)
            continue
        return dict(config.rope_parameters)
    return reason


def _forms(native: PreTrainedConfig, rope_parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the same angles in the forms that transformers may accept."""
    kind = rope_parameters["rope_type"]
    if kind == "dynamic" or kind in KEPT or isinstance(native, ScaledGPTJConfig):
        return [dict(rope_parameters)]
    base = trained_rope.read(native.to_dict(), native.name_or_path or native.model_type)
    of_llama = scaling.as_llama(rope_parameters, base.head_size)
    own = native.rope_parameters
    if (
        kind == "yarn"
        and FULL in own
        and rope_parameters.get("truncate", True) != own.get("truncate", True)
    ):
        # transformers passes over the truncate of one kind of layer
        of_llama = None
    longrope = scaling.as_longrope(rope_parameters, base.head_size, base.native_length)
    if of_llama is None:
        return [longrope]
    return [of_llama, longrope]


def _unscaled(native: PreTrainedConfig) -> str:
    """Return why the layers that see everything have no positions that could be scaled; empty if they have."""
    layers = getattr(native, "layer_types", None) or ()
    if native.model_type in ROTATED_WINDOWS and "window" in needs(native):
        return "its layers that see everything have no positions, and those with a window need no scaling"
    if FULL in native.rope_parameters and FULL not in layers:
        return f"none of its {len(layers)} layers sees everything, and those with a window need no scaling"
    if getattr(native, "layer_rope_theta", None):
        return "its layers have bases that differ (layer_rope_theta)"
    return ""
