"""Shapes of benchmarks, read from their labels in tables, ``B1 H32 G8 T8192 K128``.

Letters: B batch, H query heads, G key/value heads, I position rank, T queries (and tokens of a row), S keys of a cache,
K head size, L layers, N documents packed into each row. Where there is no N, a sequence is one text.
"""

import re
from itertools import pairwise
from typing import NamedTuple

import torch


class Shape(NamedTuple):
    """The sizes in a label; 0 where it has none."""

    label: str
    name: str
    """The words before the sizes: of a model in :data:`benchmarks.models.SIZES`, or of a swept kernel."""
    batch: int
    heads: int
    groups: int
    rank: int
    tokens: int
    keys: int
    width: int
    layers: int
    documents: int


def read_shape(label: str) -> Shape:
    sizes = {letter: int(size) for letter, size in re.findall(r"\b([A-Z])(\d+)\b", label)}
    name = re.split(r",? ?\b[A-Z]\d+\b", label)[0]
    return Shape(label, name, *(sizes.get(letter, 0) for letter in "BHGITSKLN"))


def document_lengths(tokens: int, documents: int) -> tuple[int, ...]:
    """Return uneven lengths that fill a sequence, always the same."""
    generator = torch.Generator().manual_seed(0)
    # a document has a token at least
    cuts = torch.randperm(tokens - 1, generator=generator)[: documents - 1] + 1
    return tuple(end - start for start, end in pairwise((0, *sorted(cuts.tolist()), tokens)))
