"""Values of a ``config.json`` that cannot be read as the RoPE that weights were trained with, and the remedies.

A value that transformers computes with is no mistake. No remedy takes away, or changes, what the weights were trained
with: it says how to write that.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tape_ds.encodings import scaling
from tape_ds.encodings.scaling import WINDOW, Parameters

OURS = (None, "llama", "mistral", "qwen2", "qwen3", "tape", "baichuan")
"""Model types whose angles this project computes, so that everything about their RoPE must be understood here."""
_KEYS = {"rope_theta", "rope_scaling", "rope_parameters"}
_FACTORS = (
    "alpha",
    "attention_factor",
    "attn_factor",
    "mscale",
    "mscale_all_dim",
    "partial_rotary_factor",
)
"""Parameters from which a base, YaRN's factor on attention or the rotated share of a head follows."""
_ABOUT_ROPE = re.compile("(^|_)(rope|rotary)(_|$)")


def unreadable(
    config: Mapping[str, Any], stated: Any, length: int | None
) -> Iterator[tuple[str, str]]:
    """Yield what of a ``config.json`` cannot be read as one RoPE, each with its remedy; ``stated`` is the form that
    counts, ``length`` the native one, None if there is none."""
    if length is None:
        yield _without_length(config)
    if not isinstance(stated, Mapping):
        yield (
            f"its config.json has rope_scaling = {stated!r}, which is no mapping",
            'write one: {"rope_type": ..., "factor": ...}',
        )
    elif any(isinstance(value, Mapping) for value in stated.values()):
        yield (
            "its config.json has a RoPE for each kind of layer",
            "give a model with one RoPE for all layers",
        )
    else:
        yield from _without_meaning(stated)

    # Both published forms, or two fields of one, may give a parameter different values; one of two may lack it.
    outside = {key: config[key] for key in ("rope_theta", WINDOW) if key in config}
    forms = [form for form in (config.get("rope_scaling"), config.get("rope_parameters")) if form]
    readings: dict[str, list[Any]] = {}
    for form in [*({**outside, **form} for form in forms if isinstance(form, Mapping)), outside]:
        for key, value in form.items():
            if isinstance(value, (int, float, str)):
                readings.setdefault("rope_type" if key == "type" else key, []).append(value)
    twice = [
        key for key, values in readings.items() if len(set(values)) > 1 or len(values) < len(forms)
    ]
    if twice:
        wrong = f"its config.json has two readings of {', '.join(sorted(twice))}"
        yield wrong, "keep what the weights were trained with"

    # a class of transformers reads these
    if config.get("model_type") not in OURS:
        return
    for key, value in config.items():
        harmless = value in (None, False, 1, {}, []) and not ("interleave" in key and value)
        if key in _KEYS or not _ABOUT_ROPE.search(key) or harmless:
            continue
        wrong = f"its config.json has {key} = {value!r}, which transformers' {config.get('model_type')} does not read"
        remedy = "if the weights were trained as transformers computes them, without it, take it out of config.json; "
        remedy += "else give a model whose class reads it"
        if key == "rope_condense_ratio":
            remedy = f'write "rope_scaling": {{"type": "linear", "factor": {value}}} in its place, which is the same'
        yield wrong, remedy


def _without_meaning(stated: Parameters) -> Iterator[tuple[str, str]]:
    """Yield what no class can compute with: a type that is null among other parameters, and factors that are no
    numbers."""
    types = [stated[key] for key in ("rope_type", "type") if key in stated]
    if (
        types
        and types == [None] * len(types)
        and any(value is not None for value in stated.values())
    ):
        wrong = "its config.json has a rope_type that is null beside other parameters of RoPE"
        yield wrong, "write the rope_type that the weights were trained with"
    for kind in types:
        if not isinstance(kind, str | None):
            wrong = f"its config.json has rope_type = {kind!r}, which is no name of one"
            yield wrong, "write the rope_type that the weights were trained with"
    for key in _FACTORS:
        yield from no_number(key, stated.get(key))


def no_number(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a value that is neither a number nor left out."""
    if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        wrong = f"its config.json has {key} = {value!r}, not a number"
        yield wrong, f"write the number that the weights were trained with as {key}"


def _without_length(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong with the native length, and the remedy."""
    key = "max_position_embeddings"
    found = config.get(key) or config.get("n_positions")
    if isinstance(found, str) and re.fullmatch(r"[0-9]+(\.0*)?", found.strip()):
        found = float(found)
    if isinstance(found, float) and found.is_integer() and found >= 1:
        wrong = f"its {key} is {config.get(key) or config.get('n_positions')!r}, which transformers does not read"
        return wrong, f'write it as a whole number into config.json: "{key}": {int(found)}'
    wrong = f"its {key} is {found!r}, no number of tokens"
    return wrong, f'write the tokens that it was trained with as "{key}" into config.json'


def two_factors(given: Mapping[str, Any], place: str) -> tuple[str, str]:
    """Return what is wrong with vLLM's ``attn_factor`` where a class of transformers computes, and the remedy."""
    wrong = f"its config.json has {place}.attn_factor = {given['attn_factor']!r}, which transformers' class passes over"
    factor = given.get("factor")
    if not isinstance(factor, (int, float)):
        return wrong, "write the attention_factor that the weights were trained with in its place"
    plain = scaling.yarn_attention(factor)
    plain = given.get("attention_factor", plain)
    of_vllm = given["attn_factor"] * plain
    remedy = f"write what the weights were trained with in its place: attention_factor: {of_vllm:.10g} as vLLM does"
    return wrong, f"{remedy}, or {plain:.10g} as transformers does"


def wrong_parameters(
    parameters: Parameters, head_size: int, kept: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each wrong parameter of a base, what is wrong and a remedy; ``kept``: further types."""
    rope_type = parameters["rope_type"]
    for each in scaling.check(parameters):
        key = each.field.rpartition(".")[2]
        remedy = f"write what the weights were trained with: {each.remedy}"
        if key == "rope_type":
            remedy = "give a model with one of: " + ", ".join(sorted([*scaling.available(), *kept]))
        elif key not in scaling.named(rope_type) and key != "rope_theta":
            remedy = _of_unknown(key, each.value, parameters, head_size)
        yield key, f"{each.value!r}, {each.wrong}", remedy


def _of_unknown(key: str, value: Any, parameters: Parameters, head_size: int) -> str:
    """Return the remedy for a parameter of ``rope_scaling`` that transformers has for no type."""
    rope_type = parameters["rope_type"]
    if key == "alpha" and isinstance(value, (int, float)) and value >= 1 and head_size > 2:
        base = scaling.ntk_base({**parameters, "factor": value}, head_size)
        made = f'"rope_theta": {base:.10g} with "rope_type": "default"'
        return f"if the weights were trained with the base that alpha makes (theta x alpha^(d / (d - 2))), write {made}"
    terms = ", ".join(sorted(scaling.named(rope_type))) or "rope_theta"
    return (
        f"write the scaling that the weights were trained with in the terms of {rope_type}: {terms}"
    )
