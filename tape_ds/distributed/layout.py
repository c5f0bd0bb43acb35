"""Which process of a job does what: arithmetic on ranks, which recipes, trainers and planners read alike.

Neighbouring ranks work on the same sequences, so that what they exchange in every layer stays within a node where it
can.
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
        world: all of them.
        sequence: so many share the tokens of the same sequences (Ulysses).
        tensor: so many share every layer's heads and columns. One of the two at a time.

    Raises:
        ValueError: the processes do not fall into groups of so many, or both are above 1.
    """

    world: int = 1
    sequence: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if min(self.sequence, self.tensor) < 1 or self.world % self.ways:
            raise ValueError(f"{self.world} processes do not fall into groups of {self.ways}")
        if self.sequence > 1 and self.tensor > 1:
            raise ValueError("processes share either tokens or heads and columns, not both")

    @property
    def ways(self) -> int:
        """Processes that work on the same sequences."""
        return self.sequence * self.tensor

    @property
    def data(self) -> int:
        """Groups, which read different sequences: the data-parallel size."""
        return self.world // self.ways

    @property
    def readers(self) -> str:
        """What there are :attr:`data` of, in words."""
        if self.ways == 1:
            return "processes"
        return f"group{'s' * (self.data > 1)} of {self.ways} processes"

    def data_rank(self, rank: int) -> int:
        """Return which of them a rank belongs to."""
        return rank // self.ways

    def groups(self) -> list[list[int]]:
        """Return the ranks of each group, in order of their tokens and heads."""
        return [list(range(first, first + self.ways)) for first in range(0, self.world, self.ways)]


def check_heads(heads: int, key_value_heads: int, size: int, field: str = SEQUENCE) -> Iterator[Problem]:
    """Whether ``size`` processes that work on the same sequences can share a model's heads.

    Each takes equally many query heads: whole groups of them, or a part of one group.
    """
    fitting = [
        each
        for each in range(1, heads + 1)
        if heads % each == 0 and (key_value_heads % each == 0 or each % key_value_heads == 0)
    ]
    if size in fitting:
        return
    wrong = (
        f"the model's {heads} query heads on {key_value_heads} key/value heads cannot be shared by so many processes"
    )
    yield Problem(field, size, wrong, f"give one of: {', '.join(map(str, fitting))}")


def check_cuts(config: Any, size: int) -> Iterator[Problem]:
    """Whether ``size`` processes can share a model's heads, columns and vocabulary.

    Args:
        config: a transformers configuration of a Llama's shape.
        size: of a tensor-parallel group.
    """
    if size <= 1:
        return
    yield from check_heads(config.num_attention_heads, config.num_key_value_heads, size, TENSOR)
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            wrong = f"the model has {name}: a bias behind a sum of parts would be added by every process"
            yield Problem(TENSOR, size, wrong, f"use {SEQUENCE}")
    if size > min(config.intermediate_size, config.vocab_size):
        yield Problem(TENSOR, size, "more than the model's columns, or entries of its vocabulary", "give less")
