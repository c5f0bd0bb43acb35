"""Positional encodings: a registry of names, options and classes, and questions about a configuration's encoding.

No torch here. :func:`register` adds an encoding; ours are in :mod:`tape_ds.encodings.catalogue`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from tape_ds.encodings import catalogue, scaling
from tape_ds.encodings.options import ModelConfig, Options
from tape_ds.encodings.registry import available, check_options, options, options_of, register
from tape_ds.errors import Problem

__all__ = [
    "ModelConfig",
    "Options",
    "available",
    "catalogue",
    "check_options",
    "options",
    "options_of",
    "register",
]

Config = TypeVar("Config", bound=ModelConfig)
_LLAMA = ("rope", "yarn")
"""Encodings that a plain Llama computes too."""


def options_for(name: str, given: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Return the given options, and those that the encoding takes from a tokenizer by default."""
    return {**given, **options_of(name, given).from_tokenizer(tokenizer)}


def plain(config: Config, rope_parameters: Mapping[str, Any]) -> Config:
    """Return ``config`` with plain RoPE of these parameters as its encoding: a converted model as it was before."""
    changed: Any = copy.deepcopy(config)
    changed.position_encoding = "rope"
    changed.position_options = None
    changed.rope_parameters = dict(rope_parameters)
    return changed


def is_plain(config: Any) -> bool:
    """Return whether a model of ``config``, of any family, computes plain RoPE."""
    if not hasattr(config, "position_encoding"):
        return True
    return config.position_encoding == "rope" and options(config).is_alone()


def described(config: Any) -> str:
    """Return the encoding of a model of any family, and its options, in one line."""
    given = getattr(config, "position_options", None)
    return f"{getattr(config, 'position_encoding', 'rope')} {given or ''}".rstrip()


def config_at(config: Config, length: int) -> Config:
    """Return ``config`` as its encoding is used on ``length`` tokens; ``config`` itself if nothing changes."""
    chosen = options(config)
    own = dict(config.rope_parameters or {})
    rope_parameters = dict(chosen.rope_parameters_at(own, length))
    changes = chosen.changes_at(length, config.max_position_embeddings)
    if rope_parameters == own and not changes:
        return config
    changed: Any = copy.deepcopy(config)
    changed.rope_parameters = rope_parameters
    if changes:
        changed.position_options = {**(config.position_options or {}), **changes}
    return changed


def kept_options(config: Config) -> dict[str, Any]:
    """Return the options of a model with the length of ``log_scale`` spelled out, so that they mean the same in a
    configuration with more ``max_position_embeddings``."""
    own = dict(config.position_options or {})
    chosen = options(config)
    if chosen.log_scale != "none" and chosen.log_scale_from is None:
        own["log_scale_from"] = config.max_position_embeddings
    return own


def same_parameters(one: ModelConfig, other: ModelConfig) -> bool:
    """Return whether the parameters of both encodings have the same meaning."""
    alike = options(one).at_any_length() == options(other).at_any_length()
    return one.position_encoding == other.position_encoding and alike


def without_updates(config: Any) -> Any:
    """Return ``config`` with a position state that is not updated; None for an encoding without updates, and for models
    of other families."""
    changes = None
    if hasattr(config, "position_encoding"):
        changes = options(config).without_updates()
    if changes is None:
        return None
    changed = copy.deepcopy(config)
    changed.position_options = {**(config.position_options or {}), **changes}
    return changed


def with_yarn(config: Config) -> Config | None:
    """Return ``config`` with RoPE parameters that :func:`config_at` scales as YaRN does, from the window it was trained
    on to the length of a text; None if its RoPE is scaled already, or unused."""
    if (config.rope_parameters or {}).get("rope_type") != "default":
        return None
    changed: Any = copy.deepcopy(config)
    changed.position_encoding = (
        "yarn" if config.position_encoding == "rope" else config.position_encoding
    )
    window = config.max_position_embeddings
    own = {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": window}
    changed.rope_parameters = {**config.rope_parameters, **own}
    if config_at(changed, 2 * window) is changed:
        return None
    return changed


def llama_rope_parameters(config: ModelConfig) -> dict[str, Any] | None:
    if config.position_encoding not in _LLAMA or not options(config).is_alone():
        return None
    return scaling.as_llama(config.rope_parameters, config.head_dim)


def problems_with(config: ModelConfig) -> list[Problem]:
    """Return contradictions between the encoding, its options and the model's other fields."""
    rope_parameters = config.rope_parameters or {}
    problems = check_options(config.position_encoding, config.position_options or {})
    problems += scaling.check(rope_parameters)
    if problems:
        return problems
    chosen = options(config)
    problems += chosen.problems_with(config)
    if chosen.no_dynamic_scaling and scaling.is_dynamic(rope_parameters):
        wrong = chosen.no_dynamic_scaling
        remedy = "rope_parameters.rope_type: linear, ntk, yarn"
        problems.append(Problem("rope_parameters.rope_type", "dynamic", wrong, remedy))
    return problems
