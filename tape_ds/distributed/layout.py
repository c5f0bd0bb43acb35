"""Which process of a job does what: arithmetic on ranks, shared by recipes, trainers and planners.

Neighbouring ranks work on the same sequences, so that what they exchange in every layer stays within a node if
possible.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tape_ds.errors import Problem

SEQUENCE, TENSOR = "sequence_parallel_size", "tensor_parallel_size"
"""Fields of every recipe."""


@dataclass(frozen=True)
class Layout:
    """The processes of a job.

    Args:
        world: number of processes.
        sequence: number that share the tokens of the same sequences (Ulysses).
        tensor: number that share every layer's heads and columns. Only one of the two can be above 1.

    Raises:
        ValueError: the processes cannot be divided into such groups, or both are above 1.
    """

    world: int = 1
    sequence: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if min(self.sequence, self.tensor) < 1 or self.world % self.ways:
            raise ValueError(f"{self.world} processes cannot be divided into groups of {self.ways}")
        if self.sequence > 1 and self.tensor > 1:
            raise ValueError("processes share either tokens or heads and columns, not both")

    @property
    def ways(self) -> int:
        """Number of processes that work on the same sequences."""
        return self.sequence * self.tensor

    @property
    def data(self) -> int:
        """Data-parallel size: the number of groups, which read different sequences."""
        return self.world // self.ways

    @property
    def readers(self) -> str:
        """Noun for the :attr:`data` groups."""
        if self.ways == 1:
            return "processes"
        return f"group{'s' * (self.data > 1)} of {self.ways} processes"

    def data_rank(self, rank: int) -> int:
        return rank // self.ways

    def groups(self) -> list[list[int]]:
        """Return the ranks of each group, in order of their tokens and heads."""
        return [list(range(first, first + self.ways)) for first in range(0, self.world, self.ways)]


def check_heads(heads: int, key_value_heads: int, size: int, field: str = SEQUENCE) -> Iterator[Problem]:
    """Check that ``size`` processes of one group can share a model's heads.

    Each takes the same number of query heads: whole key/value groups, or a part of one.
    """
    fitting = [
        each
        for each in range(1, heads + 1)
        if heads % each == 0 and (key_value_heads % each == 0 or each % key_value_heads == 0)
    ]
    if size not in fitting:
        wrong = f"{size} processes cannot share the model's {heads} query heads on {key_value_heads} key/value heads"
        yield Problem(field, size, wrong, f"give one of: {', '.join(map(str, fitting))}")


def check_cuts(config: Any, size: int) -> Iterator[Problem]:
    """Check that a tensor-parallel group of ``size`` processes can share a model's heads, columns and vocabulary.

    Args:
        config: a transformers configuration of a Llama-like model.
        size: of the group.
    """
    if size <= 1:
        return
    yield from check_heads(config.num_attention_heads, config.num_key_value_heads, size, TENSOR)
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            wrong = f"the model has {name}: every process would add a bias that follows a sum of parts"
            yield Problem(TENSOR, size, wrong, f"use {SEQUENCE}")
    if size > min(config.intermediate_size, config.vocab_size):
        yield Problem(TENSOR, size, "more than the model's columns or vocabulary entries", "give less")
