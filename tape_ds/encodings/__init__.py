"""What is known of every positional encoding before one is built: its name, its options, and what they say. No torch.

A new encoding is a file beside this, its options in :mod:`tape_ds.encodings.options`, a line in ``_OPTIONS`` and
one in :mod:`tape_ds.encodings.registry`, which builds.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from tape_ds.encodings import abacus_options, layer_options, scaling
from tape_ds.encodings.options import (
    AlibiOptions,
    BipeAlibiOptions,
    BipeOptions,
    CopeOptions,
    FireOptions,
    FoxOptions,
    NopeOptions,
    Options,
    PopeOptions,
    PropeOptions,
    RandpeOptions,
    RepoOptions,
    T5Options,
    TapeOptions,
    YarnOptions,
)
from tape_ds.errors import Problem, did_you_mean, raise_if_any

if TYPE_CHECKING:
    from tape_ds.models.configuration import TapeConfig
    from tape_ds.models.sizes import Fields

_OPTIONS: dict[str, type[Options]] = {
    "alibi": AlibiOptions,
    "bipe_alibi": BipeAlibiOptions,
    "bipe_rope": BipeOptions,
    "cope": CopeOptions,
    "fire": FireOptions,
    "fox": FoxOptions,
    "nope": NopeOptions,
    "pope": PopeOptions,
    "prope": PropeOptions,
    "randpe": RandpeOptions,
    "repo": RepoOptions,
    "rope": Options,
    "sincos": Options,
    "t5": T5Options,
    "tape": TapeOptions,
    "xpos": Options,
    "yarn": YarnOptions,
}
_LLAMA = ("rope", "yarn")
"""Encodings of which a plain Llama computes the same."""


def available() -> list[str]:
    """Return names of the encodings, as ``position_encoding`` takes them."""
    return sorted(_OPTIONS)


def learns(name: str, given: Mapping[str, Any]) -> bool:
    """Return whether an encoding with these options has parameters of its own (TAPE's updates, T5's tables, ...)."""
    kind = _kind(name)(**given)
    return kind.learns or kind.abacus


def reads_tokens(name: str) -> bool:
    """Return whether an encoding's places follow from the token ids, so that position ids mean nothing to it."""
    return _kind(name).reads_tokens


def biases_scores(name: str) -> bool:
    """Return whether an encoding may add to the scores of attention."""
    return _kind(name).biases_scores


def options_for(name: str, given: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Return the given options, and whatever this encoding takes from a tokenizer where nobody gave it."""
    kind = _kind(name)(**given)
    filled = abacus_options.for_tokenizer(kind.for_tokenizer(tokenizer), tokenizer)
    changed = {each.name for each in fields(kind) if getattr(filled, each.name) != getattr(kind, each.name)}
    return {**given, **{name: getattr(filled, name) for name in changed}}


def default_rope_parameters(name: str, window: int) -> dict[str, Any]:
    """Angles of a model made from scratch, trained on ``window`` tokens, where nobody says otherwise."""
    return _kind(name)().default_rope_parameters(window)


def plain(config: TapeConfig, rope_parameters: Mapping[str, Any]) -> TapeConfig:
    """``config`` with plain RoPE of these parameters in place of its encoding: what a converted model was before."""
    changed = copy.deepcopy(config)
    changed.position_encoding, changed.position_options = "rope", None
    changed.rope_parameters = dict(rope_parameters)
    return changed


def is_plain(config: Any) -> bool:
    """Return whether :func:`plain` at its own RoPE parameters is what a model of ``config``, of any family,
    computes."""
    if not hasattr(config, "position_encoding"):
        return True
    return config.position_encoding == "rope" and options(config).is_alone()


def described(config: Any) -> str:
    """Return the encoding of a model of any family, and its options, in one line."""
    options = getattr(config, "position_options", None)
    return f"{getattr(config, 'position_encoding', 'rope')} {options or ''}".rstrip()


def config_at(config: TapeConfig, length: int) -> TapeConfig:
    """``config`` as its encoding is used on ``length`` tokens; ``config`` itself where that changes nothing."""
    chosen, own = options(config), dict(config.rope_parameters or {})
    rope_parameters = dict(chosen.rope_parameters_at(own, length))
    changes = chosen.changes_at(length, config.max_position_embeddings)
    if rope_parameters == own and not changes:
        return config
    changed = copy.deepcopy(config)
    changed.rope_parameters = rope_parameters
    if changes:
        changed.position_options = {**(config.position_options or {}), **changes}
    return changed


def same_parameters(one: TapeConfig, other: TapeConfig) -> bool:
    """Return whether both mean the same by the parameters of their encoding: at most the length of texts differs."""
    alike = options(one).at_any_length() == options(other).at_any_length()
    return one.position_encoding == other.position_encoding and alike


def without_updates(config: Any) -> TapeConfig | None:
    """``config`` with a position state that stays as it started; None for an encoding whose layers update none, and
    for models of any other family."""
    changes = options(config).without_updates() if hasattr(config, "position_encoding") else None
    if changes is None:
        return None
    changed: TapeConfig = copy.deepcopy(config)
    changed.position_options = {**(config.position_options or {}), **changes}
    return changed


def with_yarn(config: TapeConfig) -> TapeConfig | None:
    """``config`` with RoPE parameters that :func:`config_at` scales as YaRN does, from the window it was trained on to
    the length of a text; None where its RoPE is not plain, or turns nothing."""
    if (config.rope_parameters or {}).get("rope_type") != "default":
        return None
    changed = copy.deepcopy(config)
    changed.position_encoding = "yarn" if config.position_encoding == "rope" else config.position_encoding
    window = config.max_position_embeddings
    own = {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": window}
    changed.rope_parameters = {**config.rope_parameters, **own}
    return None if config_at(changed, 2 * window) is changed else changed


def llama_rope_parameters(config: TapeConfig) -> dict[str, Any] | None:
    """``rope_parameters`` of the plain Llama that computes the same; None where there is none."""
    if config.position_encoding not in _LLAMA or not options(config).is_alone():
        return None
    return scaling.as_llama(config.rope_parameters, config.head_dim)


def problems_with(config: Fields) -> list[Problem]:
    """What contradicts itself between the encoding, its options and the model's other fields."""
    given = config.position_options or {}
    problems = check_options(config.position_encoding, given)
    problems += scaling.check(config.rope_parameters or {})
    if problems:
        return problems
    chosen = _kind(config.position_encoding)(**given)
    problems += chosen.problems_with(config)
    if chosen.no_dynamic_scaling and scaling.is_dynamic(config.rope_parameters or {}):
        wrong, remedy = chosen.no_dynamic_scaling, "choose another rope_type"
        problems.append(Problem("rope_parameters.rope_type", "dynamic", wrong, remedy))
    return problems + abacus_options.problems_with(chosen, config) + layer_options.problems_with(chosen, config)


def options(config: TapeConfig) -> Options:
    """``config.position_options`` as the encoding's own checked dataclass."""
    given = config.position_options or {}
    raise_if_any(check_options(config.position_encoding, given))
    return _kind(config.position_encoding)(**given)


def check_options(name: str, given: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with an encoding's name or its options; empty when all is well."""
    if name not in _OPTIONS:
        return [Problem("position_encoding", name, "unknown encoding", did_you_mean(name, _OPTIONS))]
    kind = _OPTIONS[name]
    hints = get_type_hints(kind)
    problems = []
    for key, value in given.items():
        if key not in hints:
            remedy = did_you_mean(key, hints) if hints else f"{name} takes no options"
            problems.append(Problem(f"position_options.{key}", value, f"not an option of {name!r}", remedy))
        elif not _fits(value, hints[key]):
            problems.append(Problem(f"position_options.{key}", value, "wrong type or value", _describe(hints[key])))
    if problems:
        return problems
    chosen = kind(**given)
    return chosen.problems() + abacus_options.problems(chosen) + layer_options.problems(chosen)


def _kind(name: str) -> type[Options]:
    raise_if_any(check_options(name, {}))
    return _OPTIONS[name]


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(each, get_args(hint)[0]) for each in value)
    if get_args(hint):
        return any(_fits(value, kind) for kind in get_args(hint))
    if hint is float and type(value) is int:
        return True
    return type(value) is hint  # exact: True is no int


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of: " + ", ".join(map(str, get_args(hint)))
    return "give " + " or ".join(map(_name, get_args(hint) if isinstance(hint, UnionType) else (hint,)))


def _name(hint: Any) -> str:
    if get_origin(hint) is list:
        return f"a list of {get_args(hint)[0].__name__}"
    return "null" if hint is type(None) else hint.__name__
