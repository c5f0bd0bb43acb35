"""The classes that compute each encoding, and what is built of them. Its options are registered beside this file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from tape_ds import encodings
from tape_ds.encodings import layer_options
from tape_ds.encodings.abacus import AbacusEncoding
from tape_ds.encodings.alibi import AlibiEncoding, AlibiLayer
from tape_ds.encodings.base import PositionEncoding, PositionLayer
from tape_ds.encodings.bipe import BipeAlibiEncoding, BipeAlibiLayer, BipeRopeEncoding
from tape_ds.encodings.cope import CopeLayer
from tape_ds.encodings.fire import FireEncoding, FireLayer
from tape_ds.encodings.fox import FoxLayer
from tape_ds.encodings.nope import NopeLayer
from tape_ds.encodings.pope import PopeEncoding, PopeLayer
from tape_ds.encodings.prope import PropeEncoding
from tape_ds.encodings.randpe import RandpeEncoding
from tape_ds.encodings.repo import RepoEncoding, RepoLayer
from tape_ds.encodings.rope import RopeEncoding, RopeLayer
from tape_ds.encodings.sincos import SincosEncoding
from tape_ds.encodings.t5 import T5Layer
from tape_ds.encodings.tape import TapeEncoding, TapeLayer
from tape_ds.encodings.xpos import XposEncoding, XposLayer

if TYPE_CHECKING:
    from tape_ds.models.configuration import TapeConfig


class _Classes(NamedTuple):
    encoding: type[PositionEncoding]
    layer: type[PositionLayer]


_CLASSES = {
    "alibi": _Classes(AlibiEncoding, AlibiLayer),
    "bipe_alibi": _Classes(BipeAlibiEncoding, BipeAlibiLayer),
    "bipe_rope": _Classes(BipeRopeEncoding, RopeLayer),
    "cope": _Classes(PositionEncoding, CopeLayer),
    "fire": _Classes(FireEncoding, FireLayer),
    "fox": _Classes(PositionEncoding, FoxLayer),
    "nope": _Classes(PositionEncoding, NopeLayer),
    "pope": _Classes(PopeEncoding, PopeLayer),
    "prope": _Classes(PropeEncoding, RopeLayer),
    "randpe": _Classes(RandpeEncoding, RopeLayer),
    "repo": _Classes(RepoEncoding, RepoLayer),
    "rope": _Classes(RopeEncoding, RopeLayer),
    "sincos": _Classes(SincosEncoding, PositionLayer),
    "t5": _Classes(AlibiEncoding, T5Layer),
    "tape": _Classes(TapeEncoding, TapeLayer),
    "xpos": _Classes(XposEncoding, XposLayer),
    "yarn": _Classes(RopeEncoding, RopeLayer),
}


def build(config: TapeConfig) -> PositionEncoding:
    """Return the once-per-forward part of the encoding that ``config`` (a TapeConfig) names."""
    chosen = encodings.options(config)
    encoding = _CLASSES[config.position_encoding].encoding(config, chosen)
    return AbacusEncoding(config, chosen, encoding) if chosen.abacus else encoding


def build_layer(config: TapeConfig, layer_idx: int) -> PositionLayer:
    """Return the per-block part of the encoding that ``config`` names; in a layer without positions, one that does
    nothing."""
    chosen = encodings.options(config)
    placed = layer_options.has_positions(chosen, layer_idx)
    layer = _CLASSES[config.position_encoding].layer(config, chosen, layer_idx) if placed else PositionLayer()
    layer.log_scaled = layer_options.scales_queries(chosen, layer_idx)
    return layer


def multiplications_per_token(config: TapeConfig, layer_idx: int, keys: float) -> float:
    """Return what the encoding adds to block ``layer_idx``, see :meth:`PositionLayer.multiplications_per_token`."""
    with torch.device("meta"):
        return build_layer(config, layer_idx).multiplications_per_token(keys)
