"""The registry of encodings: a name, its options, and the two classes that compute it.

Classes may be named as text, ``module.Class``, and are then imported when a model is built: a recipe is checked
without torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tape_ds.encodings import option_types
from tape_ds.encodings.options import ModelConfig, Options
from tape_ds.errors import Problem, did_you_mean, raise_if_any

if TYPE_CHECKING:
    from tape_ds.encodings.base import PositionEncoding, PositionLayer


class EncodingEntry(NamedTuple):
    options: type[Options]
    encoding: str | type[PositionEncoding]
    layer: str | type[PositionLayer]


_ENTRIES: dict[str, EncodingEntry] = {}


def register(
    name: str,
    options: type[Options],
    encoding: str | type[PositionEncoding],
    layer: str | type[PositionLayer],
) -> None:
    """Add an encoding, ours or another package's.

    Args:
        name: for ``position_encoding``.
        options: dataclass of its ``position_options``.
        encoding: runs once per forward; a class, or ``module.Class``.
        layer: runs in every block.
    """
    entry = EncodingEntry(options, encoding, layer)
    if _ENTRIES.setdefault(name, entry) != entry:
        raise ValueError(f"an encoding {name!r} is registered already")


def available() -> list[str]:
    return sorted(_ENTRIES)


def entry_of(name: str) -> EncodingEntry:
    raise_if_any(check_options(name, {}))
    return _ENTRIES[name]


def check_options(name: str, given: Mapping[str, Any]) -> list[Problem]:
    if name not in _ENTRIES:
        return [
            Problem("position_encoding", name, "unknown encoding", did_you_mean(name, _ENTRIES))
        ]
    kind = _ENTRIES[name].options
    return option_types.problems(name, kind, given) or list(kind(**given).problems())


def options_of(name: str, given: Mapping[str, Any]) -> Options:
    raise_if_any(check_options(name, given))
    return _ENTRIES[name].options(**given)


def options(config: ModelConfig) -> Options:
    return options_of(config.position_encoding, config.position_options or {})


def build(config: ModelConfig) -> PositionEncoding:
    chosen = options(config)
    encoding: PositionEncoding = imported(_ENTRIES[config.position_encoding].encoding)(
        config, chosen
    )
    if chosen.abacus:
        encoding = imported("tape_ds.encodings.abacus.AbacusEncoding")(config, chosen, encoding)
    # the same text further on has other scores
    if encoding.log_positions:
        encoding.translation_invariant = False
    return encoding


def build_layer(config: ModelConfig, layer_idx: int) -> PositionLayer:
    """Return the part of the encoding for one block; without positions there, one that does nothing."""
    chosen = options(config)
    placed = chosen.has_positions(layer_idx)
    named = (
        _ENTRIES[config.position_encoding].layer
        if placed
        else "tape_ds.encodings.base.PositionLayer"
    )
    layer: PositionLayer = imported(named)(config, chosen, layer_idx)
    layer.log_scaled = chosen.log_scale == "all" or (
        chosen.log_scale == "nope_layers" and not placed
    )
    return layer


def imported(named: str | type) -> Any:
    if not isinstance(named, str):
        return named
    module, _, name = named.rpartition(".")
    return getattr(importlib.import_module(module), name)
