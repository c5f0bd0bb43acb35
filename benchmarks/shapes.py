"""Shapes, and their labels in tables.

A label is the letters of its sizes, ``B1 H32 G8 T8192 K128``: B batch, H query heads, G key/value heads, I position
rank, T queries (and tokens of a row), S keys of a cache, K head size, L layers, N documents packed into each row. Where
there is no N, a sequence is one text. ``parse`` reads it back, so a stored table needs no further columns.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

import torch

# By the name of a shape's field
LETTERS = {
    "batch": "B",
    "heads": "H",
    "groups": "G",
    "rank": "I",
    "tokens": "T",
    "keys": "T1 S",
    "width": "K",
    "layers": "L",
    "documents": "N",
}


@dataclass(frozen=True)
class Shape:
    @property
    def label(self) -> str:
        """Its name in tables: its fields in order, one without a letter as it is."""
        return " ".join(f"{LETTERS.get(name, '')}{size}" for name, size in vars(self).items() if size is not None)


@dataclass(frozen=True)
class AttentionShape(Shape):
    batch: int
    heads: int
    groups: int
    tokens: int
    width: int
    documents: int | None = None


@dataclass(frozen=True)
class Sweep(Shape):
    kernel: str
    """A name of :data:`benchmarks.launches.KERNELS`."""
    attention: AttentionShape

    @property
    def label(self) -> str:
        return f"{self.kernel}, {self.attention.label}"


@dataclass(frozen=True)
class Decode(Shape):
    batch: int
    heads: int
    groups: int
    keys: int
    width: int


@dataclass(frozen=True)
class Mix(Shape):
    batch: int
    heads: int
    groups: int
    rank: int
    tokens: int
    width: int


@dataclass(frozen=True)
class BenchmarkModel(Shape):
    name: str
    """A name of :data:`benchmarks.models.SIZES`."""
    layers: int
    batch: int
    tokens: int
    documents: int | None = None


def parse(label: str) -> dict[str, int]:
    """Return the sizes in a label, by letter: ``{"B": 1, "T": 8192, ...}``."""
    return {letter: int(size) for letter, size in re.findall(r"\b([A-Z])(\d+)\b", label)}


def document_lengths(tokens: int, documents: int) -> tuple[int, ...]:
    """Return uneven lengths that fill a sequence, always the same."""
    cuts = torch.randperm(tokens - 1, generator=torch.Generator().manual_seed(0))[: documents - 1] + 1
    return tuple(end - start for start, end in pairwise((0, *sorted(cuts.tolist()), tokens)))
