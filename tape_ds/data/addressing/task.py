"""What every task of this folder is: words of a sequence, which of them are answers, and the options of a recipe."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tape_ds.data.arithmetic.tasks import SPECIAL
from tape_ds.errors import Problem

LONGEST = 4096
"""Of a text that nothing else limits."""


@dataclass(frozen=True)
class AddressingSequence:
    """A text with its answers in it."""

    words: tuple[str, ...]
    """A token each."""
    answers: tuple[int, ...]
    """Places of the answers among them, rising; each follows from the words before it."""


@dataclass(frozen=True)
class AddressingTask(ABC):
    """A kind of sequence. A subclass's fields are its options: integers and floats."""

    name: ClassVar[str]
    counts: ClassVar[str]
    """What the length of a sequence counts."""
    step: ClassVar[int] = 1
    """Lengths are multiples of it."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """Every word that a sequence may have, in the order of their ids."""

    @property
    @abstractmethod
    def signs(self) -> tuple[str, ...]:
        """Words that end a segment, for encodings that have segments."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Share of right answers, 0 to 1, of a uniform guess among all words that can be answers."""

    @property
    @abstractmethod
    def shortest(self) -> int:
        """The smallest length for which there are sequences enough to train and to test on."""

    @property
    def longest(self) -> int:
        """The largest length."""
        return LONGEST

    @abstractmethod
    def tokens(self, length: int) -> int:
        """Return tokens of a sequence of this length, all its answers among them."""

    @abstractmethod
    def draw(self, generator: random.Random, length: int) -> AddressingSequence:
        """Return a sequence of exactly this length."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Its tokens, in the order of their ids."""
        return (*SPECIAL, *self.words)

    def tested(self) -> Mapping[str, "AddressingTask"]:
        """Return the kinds of sequences that a model of this task is tested on, by what tells them apart."""
        return {"": self}

    @abstractmethod
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Return the smallest and the largest value of each option."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the options, each of which has its type."""
        for option, (least, most) in self.bounds().items():
            value = getattr(self, option)
            if not least <= value <= most:
                yield Problem(option, value, "out of range", f"give {least:,} to {most:,}")
