"""The shapes that are timed, and the labels by which tables call them.

A label is the letters of its sizes, ``B1 H32 G8 T8192 K128``: B batch, H query heads, G key/value heads, I position
rank, T queries (and tokens of a row), S keys of a cache, K head size, L layers. ``parse`` reads it back, so a stored
table needs no further columns.
"""

import re
from typing import NamedTuple


class Attention(NamedTuple):
    """Causal attention over rows of T tokens."""

    batch: int
    heads: int
    groups: int
    tokens: int
    width: int

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"B{self.batch} H{self.heads} G{self.groups} T{self.tokens} K{self.width}"


class Decode(NamedTuple):
    """One query a row over a cache of S keys."""

    batch: int
    heads: int
    groups: int
    keys: int
    width: int

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"B{self.batch} H{self.heads} G{self.groups} T1 S{self.keys} K{self.width}"


class Mix(NamedTuple):
    """The update of the position states of T tokens."""

    batch: int
    heads: int
    groups: int
    rank: int
    tokens: int
    width: int

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"B{self.batch} H{self.heads} G{self.groups} I{self.rank} T{self.tokens} K{self.width}"


class Model(NamedTuple):
    """Rows of T tokens through the first layers of a model."""

    name: str
    """Of :data:`benchmarks.models.SIZES`."""
    layers: int
    batch: int
    tokens: int

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"{self.name} L{self.layers} B{self.batch} T{self.tokens}"


Shape = Attention | Decode | Mix | Model

ATTENTION = {
    "cuda": [
        Attention(1, 32, 32, 8192, 128),
        Attention(4, 32, 32, 8192, 64),
        Attention(8, 12, 12, 1024, 64),
        Attention(1, 32, 8, 8192, 128),
    ],
    "cpu": [Attention(1, 12, 12, 1024, 64), Attention(1, 12, 12, 2048, 64), Attention(1, 9, 3, 2048, 64)],
}
DECODE = {
    "cuda": [Decode(1, 32, 32, 8192, 128), Decode(1, 32, 8, 8192, 128), Decode(1, 9, 3, 8192, 64)],
    "cpu": [Decode(1, 32, 32, 8192, 128), Decode(1, 12, 12, 8192, 64), Decode(1, 9, 3, 8192, 64)],
}
POSITION_MIX = {
    "cuda": [Mix(1, 32, 32, 128, 8192, 128), Mix(8, 12, 12, 48, 1024, 64), Mix(1, 32, 8, 32, 8192, 128)],
    "cpu": [Mix(1, 12, 12, 48, 2048, 64), Mix(1, 9, 3, 12, 2048, 64)],
}
ROTATE = {
    "cuda": [Attention(1, 32, 32, 8192, 128), Attention(8, 12, 12, 1024, 64), Attention(1, 32, 8, 8192, 128)],
    "cpu": [Attention(1, 12, 12, 2048, 64), Attention(1, 9, 3, 2048, 64)],
}
LAYER = {"cuda": [Model("7B", 1, 1, 8192), Model("7B", 1, 1, 4096)], "cpu": [Model("155M", 1, 1, 2048)]}
STEP = {"cuda": [Model("155M", 12, 8, 1024)], "cpu": [Model("155M", 6, 1, 1024), Model("155M", 6, 1, 2048)]}
RECIPE = {"cuda": [Model("7B", 32, 1, tokens) for tokens in (4096, 8192, 16384, 32768, 65536)], "cpu": []}
"""Doubling until it no longer fits: the last row that has a time is the longest on this GPU."""
GENERATE = {"cuda": [Model("7B", 32, 1, 8192), Model("155M", 12, 1, 8192)], "cpu": [Model("155M", 6, 1, 8192)]}
TABLE_4 = {
    "cuda": [Model("155M", 1, 1, 1024), Model("155M", 1, 8, 1024), Model("155M", 12, 1, 1024)],
    "cpu": [Model("155M", 1, 1, 1024), Model("155M", 6, 1, 1024)],
}
"""One layer, and a whole model."""
FORMULATION = {kind: [Model("155M", 6, 1, 2048)] for kind in ("cuda", "cpu")}


def parse(label: str) -> dict[str, int]:
    """The sizes in a label, by letter: ``{"B": 1, "T": 8192, ...}``."""
    return {letter: int(size) for letter, size in re.findall(r"\b([A-Z])(\d+)\b", label)}
