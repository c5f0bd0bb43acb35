"""The RoPE that a base model was trained with, read from its ``config.json``, and how an extension continues from it.

Both published forms are read: ``rope_scaling`` and ``rope_theta`` (transformers 4), and ``rope_parameters``
(transformers 5). Neither torch nor transformers is imported, so a dry run reads exactly what the run reads.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tape_ds.encodings import scaling
from tape_ds.encodings.published_rope import (
    OURS,
    no_number,
    two_factors,
    unreadable,
    wrong_parameters,
)
from tape_ds.encodings.scaling import WINDOW, Parameters
from tape_ds.errors import Problem, UserError, raise_if_any

AUTO = "auto"
"""``rope_type`` of an extension: the model's own scaling where it has one, else YaRN."""
FULL = "full_attention"
"""Of RoPE parameters for each kind of layer, those of layers that see everything: the ones that are scaled."""
PARTIAL = "partial_rotary_factor"
OF_THE_CLASS = (PARTIAL, "llama_4_scaling_beta", "max_position_embeddings")
"""RoPE parameters that scaling leaves alone: the rotated share of a head, and what Ministral 3's class reads."""
KEPT = ("longrope", "proportional")
"""Types of transformers that are kept as they are: nothing here computes them or makes them reach further."""
FIXED_BASE = ("hunyuan_v1_dense", "hunyuan_v1_moe")
"""Model types whose class reads ``dynamic`` with an ``alpha`` as plain RoPE with a larger base."""
WITHOUT = "attention without positions, extended by training alone"
OWN_TYPES = ("tape", "tape_gptj")
"""Model types of this project, whose ``max_position_embeddings`` is always the length that scaling reaches."""

_THETA = 10_000.0
_WITHOUT_EFFECT = {"finetuned": None, "extrapolation_factor": 1, PARTIAL: 1}
"""Keys of published ``rope_scaling`` that change no angle: always, or at this value."""
_STATIC = ("linear", "llama3", "ntk", "yarn", "yarn_revised")
"""Types that scale texts of every length alike."""
_FROM_WINDOW = ("llama3", "yarn", "yarn_revised")
"""Types whose frequencies depend on the window."""


@dataclass(frozen=True)
class TrainedRope:
    """The RoPE of a base model."""

    name: str
    """Of the model."""
    parameters: Parameters
    """Complete ``rope_parameters``, as :mod:`.scaling` defines them."""
    native_length: int
    """Tokens of context that the model has with them."""
    window: float | None
    """Tokens that a ``factor`` of the same type multiplies; None where config.json allows two readings."""
    head_size: int
    """Rotated columns of a head."""
    note: str = field(default="", compare=False)
    """How its ``config.json`` was read, where that is not plain to see."""
    is_used: bool = True
    """False: the attention of this hybrid has no positions."""

    @property
    def type(self) -> str:
        return str(self.parameters["rope_type"])

    @property
    def factor(self) -> float:
        return float(self.parameters.get("factor") or 1.0)

    @property
    def reach(self) -> float:
        """Tokens that its scaling is made for: more than the native length where ``max_position_embeddings`` was left
        as it was, as the model card of Qwen3 has it."""
        scaled = self.factor * self.window if self.window and self.type in _STATIC else 0
        return max(self.native_length, scaled)

    @property
    def stated(self) -> dict[str, Any]:
        """The parameters that :func:`read` reads as these again: without a window that config.json leaves open."""
        return {
            key: value
            for key, value in self.parameters.items()
            if key != WINDOW or self.window is not None
        }

    @property
    def is_scaled(self) -> bool:
        """Whether angles within the native length differ from plain RoPE's."""
        attention = self.parameters.get("attention_factor") or 1.0
        if self.type in KEPT:
            return True
        return self.type in _STATIC and self.type != "ntk" and (self.factor != 1 or attention != 1)

    @property
    def unscaled_theta(self) -> float:
        """The base frequency of the unscaled RoPE that gives the same angles within the native length: ``ntk`` is a
        larger base, and ``dynamic`` leaves texts of its window as they are."""
        ntk = self.type == "ntk"
        if ntk:
            return scaling.ntk_base(self.parameters, self.head_size)
        return float(self.parameters["rope_theta"])


def read(config: Mapping[str, Any], name: str) -> TrainedRope:
    """Return the RoPE of a model from its ``config.json`` (or ``to_dict()`` of its configuration); where it has one for
    each kind of layer, that of layers that see everything. ``name`` is for messages."""
    model_type = config.get("model_type")
    foreign = model_type not in OURS
    is_own = model_type in OWN_TYPES
    place = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    stated = config.get(place) or {}
    passed_over: dict[str, Any] = {}
    if foreign and isinstance(stated, Mapping) and isinstance(stated.get(FULL), Mapping):
        stated, passed_over = _of_layers_that_see_everything(stated)
    length = native_length(config)
    raise_if_any([Problem("model", name, *reason) for reason in unreadable(config, stated, length)])
    assert length is not None  # else it was unreadable

    given = {key: value for key, value in stated.items() if value is not None}
    rope_type = given.pop("rope_type", given.pop("type", "default"))
    thetas = (given.pop("rope_theta", None), config.get("rope_theta"), _THETA)
    named = [given.pop(WINDOW, None), config.get(WINDOW)]
    if rope_type in _FROM_WINDOW:
        named.reverse()  # in the order of transformers
    elif rope_type == "dynamic" and not is_own:
        # transformers counts from max_position_embeddings alone
        named = [length]
    window = next((each for each in named if each is not None), None)
    if rope_type == "yarn":
        if foreign and isinstance(given.get("attn_factor"), (int, float)):
            raise UserError(Problem("model", name, *two_factors(given, place)))
        given = _with_attention_factor(given, length, window)

    head_size = _rotated_columns(config, given.get(PARTIAL, 1.0) if foreign else 1.0, name)
    theta = next(each for each in thetas if each is not None)
    note = ""
    alpha = given.get("alpha")
    fixed = model_type in FIXED_BASE and rope_type == "dynamic" and isinstance(theta, (int, float))
    if fixed and alpha is not None and alpha > 0:
        note = f"theta {theta:g} and alpha {alpha:g} are one fixed base"
        theta = scaling.ntk_base({"rope_theta": theta, "factor": alpha}, head_size)
        given = {key: value for key, value in given.items() if key in OF_THE_CLASS}
        rope_type = "default"

    parameters, others = _sorted_out(
        {"rope_type": rope_type, "rope_theta": theta, **given}, foreign
    )
    passed_over |= others
    if passed_over:
        named_over = ", ".join(f"{key} = {value!r}" for key, value in passed_over.items())
        note = f"transformers passes over its {named_over}"
    if rope_type in _FROM_WINDOW:
        # transformers computes with the length where none is named
        parameters[WINDOW] = window or length
    elif window and (rope_type in KEPT or WINDOW in scaling.named(rope_type)):
        parameters[WINDOW] = window
    if rope_type in KEPT:
        return TrainedRope(name, parameters, length, window, head_size, note)
    found = []
    for key, wrong, remedy in wrong_parameters(parameters, head_size, KEPT):
        # of the configuration itself
        is_outside = key == "rope_theta" and key not in stated
        field = key if is_outside else f"{place}.{key}"
        found.append(Problem("model", name, f"its config.json has {field} = {wrong}", remedy))
    raise_if_any(found)
    if parameters.get("factor", 1.0) < 1:
        below = f"its factor {parameters['factor']:g} is below 1: computed as transformers does"
        note = f"{note}; {below}" if note else below
    if rope_type not in _STATIC:
        return TrainedRope(name, parameters, length, window or length, head_size, note)

    factor = parameters.get("factor") or 1.0
    # no longer context follows from it: the length is the one that config.json names
    if factor < 1:
        return TrainedRope(name, parameters, length, length / factor, head_size, note)

    # Published models name either the length before scaling (Vicuna, LongLoRA) or after it (deepseek-coder). Vicuna
    # also has a max_sequence_length, which is the one after it.
    whole = config.get("max_sequence_length")
    if window is None and (factor == 1 or whole == factor * length):
        window = length
    elif window is None and whole == length and rope_type not in _FROM_WINDOW:
        window = length / factor
    if window is None:
        return TrainedRope(name, parameters, length, None, head_size, note)
    native = length if is_own or length > window else round(factor * window)
    if not is_own:
        parameters[WINDOW] = int(window) if window == int(window) else window
    # Llama 3.1 was trained further than its factor times its window: a factor counts from what that leaves.
    return TrainedRope(name, parameters, native, max(window, native / factor), head_size, note)


def _of_layers_that_see_everything(stated: Parameters) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return their parameters of a RoPE for each kind of layer, and those of them that transformers passes over: it
    reads YaRN's ``truncate`` beside the kinds of layers, never inside one."""
    own = {key: value for key, value in stated[FULL].items() if key != "truncate"}
    truncate = stated.get("truncate")
    if truncate is not None:
        own["truncate"] = truncate
    inside = stated[FULL].get("truncate")
    counts = True if truncate is None else truncate
    return own, {} if inside in (None, counts) else {"truncate": inside}


def _sorted_out(given: Parameters, foreign: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters that count for the type, and those that transformers passes over. Unknown ones count, and
    are refused later, except where a class of transformers computes: what it does is compared with what is read."""
    rope_type = given["rope_type"]
    of_type = {"rope_type", "rope_theta", *scaling.named(rope_type)}
    others = set() if foreign else set(given) - set(scaling.STANDARD)
    known = set(given) if rope_type in KEPT else of_type | others
    counting = {}
    passed_over: dict[str, Any] = {}
    for key, value in given.items():
        without_effect = key in _WITHOUT_EFFECT and _WITHOUT_EFFECT[key] in (None, value)
        if without_effect or (foreign and key in OF_THE_CLASS):
            continue
        if key in known:
            counting[key] = value
        else:
            passed_over[key] = value
    return counting, passed_over


def _rotated_columns(config: Mapping[str, Any], share: float, name: str) -> int:
    """Return the columns of a head, or of its rotated part where the family names those; 0: not known."""
    rotated = "qk_rope_head_dim"
    if config.get("model_type") in ("gptj", "tape_gptj"):
        rotated = "rotary_dim"
    # the last: JetMoE's
    given = next((key for key in (rotated, "head_dim", "kv_channels") if config.get(key)), None)
    needed = ("hidden_size", "num_attention_heads") if given is None else (given,)
    found = [
        Problem("model", name, *reason)
        for key in needed
        for reason in no_number(key, config.get(key))
    ]
    raise_if_any(found)
    if given is not None:
        columns = config[given]
    elif config.get("num_attention_heads"):
        columns = (config.get("hidden_size") or 0) // config["num_attention_heads"]
    else:
        columns = 0
    return int(int(columns) * share)


def of_full(rope_parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = rope_parameters.get(FULL, rope_parameters)
    return found


def native_length(config: Mapping[str, Any]) -> int | None:
    # the others: GPT-J's, the first LLaMA's, Kimi Linear's
    names = ("max_position_embeddings", "n_positions", "max_sequence_length", "model_max_length")
    found = next((config[name] for name in names if config.get(name)), None)
    if type(found) is int and found >= 1:
        return found
    return None


def _with_attention_factor(given: dict[str, Any], length: int, window: Any) -> dict[str, Any]:
    """Return YaRN's parameters with other names for its factor on attention resolved."""
    if isinstance(window, (int, float)) and window > 0:
        # transformers' default
        given = {"factor": length / window, **given}
    if not isinstance(given.get("factor"), (int, float)):
        return given
    # vLLM's: it multiplies the default
    if isinstance(given.get("attn_factor"), (int, float)):
        usual = scaling.yarn_attention(given["factor"])
        given["attention_factor"] = given.pop("attn_factor") * given.get("attention_factor", usual)
    # DeepSeek's
    if given.get("mscale") and given.get("mscale_all_dim"):
        mscale = given.pop("mscale")
        all_dim = given.pop("mscale_all_dim")
        given.setdefault(
            "attention_factor", scaling.mscale_attention(given["factor"], mscale, all_dim)
        )
    if given.get("mscale") == 1 and not given.get("mscale_all_dim"):
        given.pop("mscale")
    if given.get("mscale_all_dim") == 0:
        given.pop("mscale_all_dim")
    return given


def requested_type(own: TrainedRope, change: Parameters) -> str:
    kind = change.get("rope_type") or own.type
    if kind == AUTO:
        kind = "yarn" if own.type == "default" else own.type
    return str(kind)


def extended(own: TrainedRope, change: Parameters, target_length: int) -> dict[str, Any]:
    """Return ``rope_parameters`` of the extended model; :func:`check_change` finds the changes that make no sense.

    Of the same type, everything that the change leaves out stays; another type starts from the unscaled RoPE of
    :meth:`TrainedRope.unscaled_theta`. A ``factor`` that is left out is what reaches ``target_length``, and never less
    than the model's own.
    """
    kind = requested_type(own, change)
    given = {
        key: value for key, value in change.items() if key != "rope_type" and value is not None
    }
    if kind == own.type:
        merged = {**own.parameters, **given}
        least = own.factor
    else:
        merged = {"rope_type": kind, "rope_theta": own.unscaled_theta, **given}
        least = 1.0
        if WINDOW in scaling.named(kind):
            merged.setdefault(WINDOW, own.native_length)
    window = factor_window(own, change)
    enough = kind == own.type and target_length <= own.native_length
    if (
        "factor" in scaling.named(kind)
        and "factor" not in given
        and window is not None
        and not enough
    ):
        merged["factor"] = max(least, target_length / window)
    return merged


def factor_window(own: TrainedRope, change: Parameters) -> float | None:
    """Return the tokens that a factor of the changed scaling multiplies; None where config.json leaves it open and the
    change does not name :data:`scaling.WINDOW`."""
    named = change.get(WINDOW)
    if requested_type(own, change) != own.type:
        return float(named or own.native_length)
    return own.window or named


def check_change(own: TrainedRope, change: Parameters, target_length: int) -> Iterator[Problem]:
    """Yield where a change undoes what the weights were trained with, or does not reach the target.

    Fields are the recipe's; arguments as for :func:`extended`.
    """
    for key in (WINDOW, "factor"):
        if (value := change.get(key)) is not None and type(value) not in (int, float):
            yield Problem(f"rope_parameters.{key}", value, "not a number", "give a finite number")
            return
    kind = requested_type(own, change)
    native = own.native_length
    named = change.get(WINDOW)
    factor = change.get("factor")
    if kind in ("ntk", "dynamic") and 0 < own.head_size <= 2:
        wrong = f"heads with {own.head_size} rotated columns have no base that it could change"
        yield Problem(
            "rope_parameters.rope_type", kind, wrong, "rope_parameters.rope_type: yarn, linear"
        )
        return
    window = factor_window(own, change)
    scaled_as = scaling.described(own.parameters)
    trained = f"the weights were trained with {scaled_as}"
    if kind != own.type and own.is_scaled:
        wrong = f"{trained}, which {kind} would undo"
        follows = ""
        if own.window:
            follows = f"; the factor follows: {max(own.factor, target_length / own.window):.4g}"
        remedy = f"rope_parameters: {{rope_type: {AUTO}}} (it stays {own.type}{follows})"
        yield Problem("rope_parameters.rope_type", kind, wrong, remedy)
        return
    if own.type in KEPT:
        if target_length > native:
            wrong = f"{trained}, which is kept as it is, and reaches {native:,} tokens"
            yield Problem("target_length", target_length, wrong, f"give {native}")
        for key, value in change.items():
            if key != "rope_type" and value not in (None, own.parameters.get(key)):
                field = f"rope_parameters.{key}"
                yield Problem(field, value, f"{trained}, which is kept as it is", f"{field}: null")
        return
    if kind == "default" and "rope_type" not in change and factor is not None:
        remedy = "rope_parameters.rope_type: one of " + ", ".join([AUTO, *scaling.available()])
        yield Problem(
            "rope_parameters", dict(change), "a factor without a rope_type scales nothing", remedy
        )
        return

    base = window or native
    if window is None and target_length > native and (factor is None or own.type in _FROM_WINDOW):
        before = native / own.factor
        after = own.factor * native
        wrong = f"{trained}; config.json leaves open if max_position_embeddings = {native:,} is before or after that"
        # the angles themselves depend on the answer
        if own.type in _FROM_WINDOW:
            remedy = f"write {WINDOW} into the model's config.json: {native} if the model reaches {after:,.0f} tokens, "
            remedy += f"which is how transformers reads it, {before:.10g} if it reaches {native:,}"
            yield Problem("model", own.name, wrong, remedy)
        else:
            few = f"{target_length / before:.4g}"
            many = f"{max(own.factor, target_length / native):.4g}"
            remedy = f"give {before:.10g} if the model reaches {native:,} tokens (the factor becomes {few}), or give "
            remedy += f"{native} if it reaches {after:,.0f} (the factor becomes {many})"
            yield Problem(f"rope_parameters.{WINDOW}", None, wrong, remedy)
    elif isinstance(factor, (int, float)) and kind == own.type and factor < own.factor:
        yield Problem(
            "rope_parameters.factor",
            factor,
            trained,
            f"give {own.factor:g} or more, or leave it out",
        )
    elif isinstance(factor, (int, float)) and factor * base < target_length:
        reached = f"{factor:g} x {base:,.10g} = {factor * base:,.0f} tokens"
        # rounded down it would not reach either
        enough = math.ceil(target_length / base * 1000) / 1000
        remedy = f"give {enough:.10g} or more ({target_length:,} / {base:,.10g}), or leave factor out (factor: null)"
        wrong = f"{reached} do not reach target_length = {target_length:,}"
        yield Problem(
            "rope_parameters.factor", factor, wrong, f"{remedy}: it follows from target_length"
        )

    if isinstance(named, (int, float)):
        least = 0.0
        most = float(native)
        if kind == own.type and WINDOW in own.parameters:
            least = most = own.parameters[WINDOW]
        elif kind == own.type and own.window is None:
            least = native / own.factor
        if not least <= named <= most:
            if least in (0, most):
                known = f"{most:.10g}"
            else:
                known = f"{least:.10g} to {most:.10g}"
            wrong = f"the model has {native:,} tokens natively, with {scaled_as}"
            yield Problem(
                f"rope_parameters.{WINDOW}", named, wrong, f"give {known}, or leave it out"
            )
    result = extended(own, change, target_length)
    yield from scaling.check(result)
    yield from scaling.check_factor(change, "give a number of at least 1, or leave it out")
    if change.keys() & scaling.BOUNDS:
        yield from scaling.check_order(result)


def described_change(own: TrainedRope, change: Parameters, target_length: int) -> str:
    if not own.is_used:
        return WITHOUT
    before = own.parameters
    after = extended(own, change, target_length)
    note = f" ({own.note})" if own.note else ""
    if after != before:
        return f"{scaling.described(before)} -> {scaling.described(after)}{note}"
    kept = f"{scaling.described(before)}, unchanged{note}"
    if own.type != "dynamic" and not own.is_scaled and target_length > own.native_length:
        kept += f": not scaled for more than {own.native_length:,} tokens"
    return kept
