"""Which process of a job does what: arithmetic on ranks, which recipes, trainers and planners read alike.

Neighbouring ranks share rows, so that what they exchange in every layer stays within a node where it can.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tape_ds.errors import Problem


@dataclass(frozen=True)
class Layout:
    """The processes of a job.

    Args:
        world: all of them.
        sequence: so many share the tokens of the same rows; divides ``world``.

    Raises:
        ValueError: it does not.
    """

    world: int = 1
    sequence: int = 1

    def __post_init__(self) -> None:
        if self.sequence < 1 or self.world % self.sequence:
            raise ValueError(f"{self.world} processes do not fall into groups of {self.sequence}")

    @property
    def data(self) -> int:
        """Groups, which read different rows: the data-parallel size."""
        return self.world // self.sequence

    @property
    def readers(self) -> str:
        """What there are :attr:`data` of, in words."""
        if self.sequence == 1:
            return "processes"
        return f"group{'s' * (self.data > 1)} of {self.sequence} processes"

    def data_rank(self, rank: int) -> int:
        """Which of them a rank belongs to."""
        return rank // self.sequence

    def sequence_groups(self) -> list[list[int]]:
        """The ranks of each group, in order of their tokens."""
        return [list(range(first, first + self.sequence)) for first in range(0, self.world, self.sequence)]


def check_heads(heads: int, key_value_heads: int, size: int) -> Iterator[Problem]:
    """Whether ``size`` processes that share rows can share a model's heads as well.

    Each takes equally many query heads: whole groups of them, or a part of one group.
    """
    fitting = [each for each in range(1, heads + 1) if _shares(heads, key_value_heads, each)]
    if size in fitting:
        return
    wrong = (
        f"the model's {heads} query heads on {key_value_heads} key/value heads cannot be shared by so many processes"
    )
    yield Problem("sequence_parallel_size", size, wrong, f"give one of: {', '.join(map(str, fitting))}")


def _shares(heads: int, key_value_heads: int, size: int) -> bool:
    groups_fit = key_value_heads % size == 0 or size % key_value_heads == 0
    return heads % size == 0 and groups_fit
