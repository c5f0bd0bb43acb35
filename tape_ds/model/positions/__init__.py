"""Registry of positional encodings: a new one is one file beside this and one line in ``_ENCODINGS``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch

from tape_ds.errors import Problem, did_you_mean, raise_if_any
from tape_ds.model.positions.base import Options, PositionEncoding, PositionLayer
from tape_ds.model.positions.rope import RopeEncoding, RopeLayer
from tape_ds.model.positions.tape import TapeEncoding, TapeLayer, TapeOptions

if TYPE_CHECKING:
    from tape_ds.model.configuration import TapeConfig


class _Entry(NamedTuple):
    encoding: type[PositionEncoding]
    layer: type[PositionLayer]
    options: type[Options]


_ENCODINGS = {
    "rope": _Entry(RopeEncoding, RopeLayer, Options),
    "tape": _Entry(TapeEncoding, TapeLayer, TapeOptions),
}


def available() -> list[str]:
    """Names of the encodings, as ``position_encoding`` takes them."""
    return sorted(_ENCODINGS)


def build(config: TapeConfig) -> PositionEncoding:
    """The once-per-forward part of the encoding that ``config`` (a TapeConfig) names."""
    return _entry(config.position_encoding).encoding(config, options(config))


def build_layer(config: TapeConfig, layer_index: int) -> PositionLayer:
    """The per-block part of the encoding that ``config`` names."""
    return _entry(config.position_encoding).layer(config, options(config), layer_index)


def multiplications_per_token(config: TapeConfig, layer_index: int, length: int) -> float:
    """What the encoding adds to block ``layer_index``, see :meth:`PositionLayer.multiplications_per_token`."""
    with torch.device("meta"):
        return build_layer(config, layer_index).multiplications_per_token(length)


def state_columns(config: TapeConfig) -> int:
    """Numbers of position state per token between blocks, see :meth:`PositionLayer.state_columns`."""
    with torch.device("meta"):
        return build_layer(config, 0).state_columns()


def options(config: TapeConfig) -> Options:
    """``config.position_options`` as the encoding's own checked dataclass."""
    given = config.position_options or {}
    raise_if_any(check_options(config.position_encoding, given))
    return _entry(config.position_encoding).options(**given)


def check_options(name: str, given: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with an encoding's name or its options; empty when all is well."""
    if name not in _ENCODINGS:
        return [Problem("position_encoding", name, "unknown encoding", did_you_mean(name, _ENCODINGS))]
    kind = _ENCODINGS[name].options
    hints = get_type_hints(kind)
    problems = []
    for key, value in given.items():
        if key not in hints:
            remedy = did_you_mean(key, hints) if hints else f"{name} takes no options"
            problems.append(Problem(f"position_options.{key}", value, f"not an option of {name!r}", remedy))
        elif not _fits(value, hints[key]):
            problems.append(Problem(f"position_options.{key}", value, "wrong type or value", _describe(hints[key])))
    return problems or kind(**given).problems()


def _entry(name: str) -> _Entry:
    raise_if_any(check_options(name, {}))
    return _ENCODINGS[name]


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    kinds = get_args(hint) or (hint,)
    return any(type(value) is kind for kind in kinds)  # exact: True is no int


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of: " + ", ".join(map(str, get_args(hint)))
    return "give " + " or ".join("null" if kind is type(None) else kind.__name__ for kind in get_args(hint) or (hint,))
