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
from tape_ds.encodings.trained_rope import FULL, KEPT, OF_THE_CLASS, of_full
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
_LAYERS = ("full_attention", "sliding_attention")
ROTATED_WINDOWS = ("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1")
"""Families whose layers have positions only where they have a window."""
_OTHERWISE = {
    "doge": "its attention adds a learned mask to the causal one",
    "dory": "its layers run several times, over a cache with which transformers itself does not generate",
    "llama4_text": "its layers attend within chunks",
}
"""Reasons against families that the rules below do not find."""


def check(native: PreTrainedConfig) -> list[Problem]:
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(native), None)
    reasons = []
    if kind is None:
        reasons.append("transformers has no language model of this type")
    else:
        if native.sub_configs:
            reasons.append(f"it is made of several models ({', '.join(native.sub_configs)}), not a decoder alone")
        elif not (rope := getattr(native, "rope_parameters", None)) or not of_full(rope):
            wrong = "its layers that see everything have no rotary positions (rope_parameters) that could be scaled"
            reasons.append(wrong)
        if native.model_type in _OTHERWISE:
            reasons.append(_OTHERWISE[native.model_type])
        elif not kind._can_set_attn_implementation():
            reasons.append("its class computes attention by code that takes no other")
        if others := sorted(set(getattr(native, "layer_types", None) or ()) - set(_LAYERS)):
            reasons.append(
                f"it has layers of other kinds ({', '.join(others)}), which see neither documents nor padding"
            )
        elif kind._is_stateful:
            reasons.append("its layers keep a state, which sees neither documents nor padding")
        if getattr(native, "use_bidirectional_attention", None) in (True, "all"):
            reasons.append("its tokens see later ones (use_bidirectional_attention)")
        if getattr(native, "attention_dropout", None):
            name = native.attribute_map.get("attention_dropout", "attention_dropout")
            wrong = f"{name} is {native.attention_dropout}, which no backend computes"
            reasons.append(f"{wrong}: set it to 0 in config.json")
        if getattr(native, "output_router_logits", False):
            reasons.append("output_router_logits adds a loss that is not computed here: set it to false in config.json")
        if getattr(native, "quantization_config", None) is not None:
            before = "give the model as it was before"
            reasons.append(f"its weights are quantised: {before} (load_in_4bit: true trains adapters on that)")
    if not reasons:
        return []
    name = native.name_or_path or native.model_type
    remedy = "give a decoder of transformers with rotary positions, all of whose layers are attention"
    return [Problem("model", name, f"{native.model_type}: {'; '.join(reasons)}", remedy)]


def recomputes(native: PreTrainedConfig) -> bool:
    return bool(MODEL_FOR_CAUSAL_LM_MAPPING[type(native)].supports_gradient_checkpointing)


def changes_logits(native: PreTrainedConfig) -> bool:
    """Return whether logits are more than the output head's product."""
    two_maps = native.model_type == "modernbert-decoder"
    return two_maps or any(getattr(native, name, None) not in (None, 1, 1.0) for name in _CHANGED_LOGITS)


def needs(native: PreTrainedConfig) -> set[str]:
    """Return what the attention of a family needs beyond causal attention, by the argument of ``attend``."""
    window, layers = getattr(native, "sliding_window", None), getattr(native, "layer_types", None)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(native)]
    found = {
        "window": bool(window) and (not layers or "sliding_attention" in layers),
        "softcap": bool(getattr(native, "attn_logit_softcapping", None)),
        "sinks": "s_aux=" in inspect.getsource(sys.modules[kind.__module__]),  # as transformers calls them
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
            problems.append(Problem(field, value, f"a {native.model_type} has none", "leave it out"))
    problems += attention.check_backend(attention_backend)
    raise_if_any(problems)
    config = copy.deepcopy(native)
    config._attn_implementation = ATTENTION if attention_backend == "auto" else f"{ATTENTION}_{attention_backend}"
    if rope_parameters is not None:
        config.rope_parameters = with_rope(native, rope_parameters)
    if max_position_embeddings is not None and not scaling.is_dynamic(rope_parameters or {}):
        config.max_position_embeddings = max_position_embeddings  # which transformers' dynamic scaling counts from
    return config


def only_rope(native: PreTrainedConfig) -> str:
    """Return why a family takes no other encoding, for messages."""
    window = f" with sliding_window = {getattr(native, 'sliding_window', None)}" if "window" in needs(native) else ""
    return f"a {native.model_type}{window} is extended by its own class, whose positions are RoPE"


def with_rope(native: PreTrainedConfig, rope_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a family's ``rope_parameters`` with others for the layers that see everything: the share of a head that is
    rotated and the RoPE of layers with a window stay."""
    own, rope_parameters = native.rope_parameters, of_full(rope_parameters)
    before, kind = of_full(own), rope_parameters["rope_type"]
    # the same angles in the forms that transformers may accept
    forms: list[dict[str, Any] | None] = [dict(rope_parameters)]
    if not (kind == "dynamic" or kind in KEPT or isinstance(native, ScaledGPTJConfig)):
        base = trained_rope.read(native.to_dict(), native.name_or_path or native.model_type)
        forms = [
            scaling.as_llama(rope_parameters, base.head_size),
            scaling.as_longrope(rope_parameters, base.head_size, base.native_length),
        ]
    reason = ""
    for form in forms:
        if form is None:
            continue
        changed = form | {key: before[key] for key in _KEPT_KEYS if key in before}
        if SCORE_SCALE in changed:  # transformers computes the factor of this scaling from it
            changed.pop("attention_factor", None)
        if changed == dict(before):
            return dict(own)
        unscaled = ""
        if native.model_type in ROTATED_WINDOWS and "window" in needs(native):
            unscaled = "its layers that see everything have no positions, and those with a window need no scaling"
        elif getattr(native, "layer_rope_theta", None):
            unscaled = "its layers have bases that differ (layer_rope_theta)"
        if unscaled:
            raise UserError(Problem("rope_parameters.rope_type", kind, unscaled, "rope_parameters: {}"))
        config = copy.deepcopy(native)
        config.rope_parameters = {**own, FULL: changed} if FULL in own else changed
        try:
            config.validate_rope()
        except UserError:  # a GPT-J's
            raise
        except (ValueError, KeyError, TypeError) as error:
            reason = f": {error}"
            continue
        return dict(config.rope_parameters)
    wrong = f"transformers' {native.model_type} does not compute it{reason}"
    raise UserError(Problem("rope_parameters.rope_type", kind, wrong, "rope_parameters.rope_type: linear, ntk, yarn"))
