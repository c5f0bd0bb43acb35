"""The shapes that are timed, and the labels by which tables call them.

A label is the letters of its sizes, ``B1 H32 G8 T8192 K128``: B batch, H query heads, G key/value heads, I position
rank, T queries (and tokens of a row), S keys of a cache, K head size, L layers, N documents packed into each row. Where
there is no N, a row is one text. ``parse`` reads it back, so a stored table needs no further columns.
"""

import re
from itertools import pairwise
from typing import NamedTuple

import torch


class Attention(NamedTuple):
    """Causal attention over rows of T tokens."""

    batch: int
    heads: int
    groups: int
    tokens: int
    width: int
    documents: int | None = None
    """Of every row, when it is packed."""

    @property
    def label(self) -> str:
        """How tables call it."""
        packed = "" if self.documents is None else f" N{self.documents}"
        return f"B{self.batch} H{self.heads} G{self.groups} T{self.tokens} K{self.width}{packed}"


class Sweep(NamedTuple):
    """Every plausible launch of one of our attention's kernels."""

    kernel: str
    """Of :data:`benchmarks.launches.KERNELS`."""
    attention: Attention

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"{self.kernel}, {self.attention.label}"


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
    documents: int | None = None

    @property
    def label(self) -> str:
        """How tables call it."""
        packed = "" if self.documents is None else f" N{self.documents}"
        return f"{self.name} L{self.layers} B{self.batch} T{self.tokens}{packed}"


Shape = Attention | Sweep | Decode | Mix | Model

# The shapes of each group, by kind of device, the most valuable first: a run that is cut short keeps what it has done.
ATTENTION = {
    "cuda": [
        Attention(1, 32, 32, 8192, 128),
        Attention(4, 32, 32, 8192, 64),
        Attention(8, 12, 12, 1024, 64),
        Attention(1, 32, 8, 8192, 128),
    ],
    "cpu": [Attention(1, 12, 12, 1024, 64), Attention(1, 12, 12, 2048, 64), Attention(1, 9, 3, 2048, 64)],
}
PACKED = {
    "cuda": [
        *(Attention(1, 32, 32, 8192, 128, documents) for documents in (16, 1, 64)),
        Attention(1, 32, 8, 8192, 128, 16),
        Attention(4, 32, 32, 8192, 64, 16),
    ],
    "cpu": [Attention(1, 12, 12, 2048, 64, documents) for documents in (1, 16)],
}
LAUNCHES = {
    "cuda": [
        Sweep(kernel, Attention(1, 32, 32, 8192, 128, documents))
        for documents in (None, 16)
        for kernel in ("forward", "dK dQ", "dV")
    ],
    "cpu": [],
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
LAYER = {
    "cuda": [Model("7B", 1, 1, 8192), Model("7B", 1, 1, 8192, 16), Model("7B", 1, 1, 4096)],
    "cpu": [Model("155M", 1, 1, 2048)],
}
STEP = {
    "cuda": [Model("155M", 12, 8, 1024)],
    "cpu": [Model("155M", 6, 1, 1024), Model("155M", 6, 1, 1024, 16), Model("155M", 6, 1, 2048)],
}
RECIPE = {
    "cuda": [
        *(Model("7B", 32, 1, 8192, documents) for documents in (None, 16)),
        *(Model("7B", 32, 1, tokens) for tokens in (32768, 4096, 16384, 65536)),
    ],
    "cpu": [],
}
SAVINGS = {
    "cuda": [Model("7B", 8, 1, 8_192), Model("7B", 8, 1, 32_768)],
    "cpu": [Model("deep", 16, 1, 2_048), Model("155M", 1, 1, 4_096)],
}
"""Blocks and logits apart on a CPU: blocks so large that they count beside a chunk of logits would take an hour."""
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


def document_lengths(tokens: int, documents: int) -> tuple[int, ...]:
    """Uneven lengths that fill a row, always the same ones."""
    cuts = torch.randperm(tokens - 1, generator=torch.Generator().manual_seed(0))[: documents - 1] + 1
    return tuple(end - start for start, end in pairwise((0, *sorted(cuts.tolist()), tokens)))
