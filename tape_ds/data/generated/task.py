"""The protocol of a generated task: its vocabulary, the sequences it draws, and the sizes they are trained and tested
at."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
"""The first tokens of every vocabulary."""
PAD, UNK, BOS, EOS = range(4)
"""Their ids. Sequences have no BOS, as published."""

Size = tuple[int, ...]
"""How long a sequence is: (length,), or a number for each of two operands."""


@dataclass(frozen=True)
class GeneratedSample:
    """A sequence with its answers in it."""

    words: tuple[str, ...]
    """A token each."""
    answers: tuple[int, ...]
    """Places of the answers among them, rising; each follows from the words before it."""


class Task(ABC):
    """A kind of sequence. The fields that :meth:`bounds` names are its options in a recipe."""

    name: str
    sizes: tuple[str, ...]
    """What each number of a size counts."""
    by_character: bool = False
    """Whether every character of a text is a token; else spaces separate the tokens."""

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens in the order of their ids, :data:`SPECIAL` first."""

    @property
    @abstractmethod
    def signs(self) -> Sequence[str]:
        """Words that end a segment, for encodings that have segments."""

    @abstractmethod
    def draw(self, generator: random.Random, size: Size, *, test: bool) -> GeneratedSample:
        """Draw a sequence of this size among those held out for tests, or among all others."""

    @abstractmethod
    def held_out(self, size: Size, count: int, seed: int) -> list[GeneratedSample]:
        """Return ``count`` sequences of a test, which depend on task, size and seed alone; fewer where there are
        fewer."""

    @abstractmethod
    def training_size(self, trained: Size, own: random.Random, step_seed: str) -> Size:
        """Draw the size of a training sequence.

        Args:
            trained: a recipe's: the largest of each size, or the shortest and the longest length.
            own: the generator of this sequence.
            step_seed: the same for all sequences of a step.
        """

    @abstractmethod
    def tokens(self, size: Size) -> int:
        """Return the most tokens of a sequence of this size, answers included."""

    @abstractmethod
    def most_tokens(self, sizes: Sequence[int]) -> int:
        """Return the most tokens of any sequence of the sizes that a recipe trains or tests."""

    @abstractmethod
    def tests(self, tested: Sequence[int]) -> list["Test"]:
        """Return the tests up to the sizes, or at the lengths, ``tested``."""

    @abstractmethod
    def fingerprint(self, sizes: Sequence[int]) -> str:
        """Hash all sequences of these sizes and how they are drawn."""

    @property
    def chance(self) -> float | None:
        """Share of right answers of a uniform guess among all words that can be answers; None: not counted."""
        return None

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """Return the smallest and the largest value of each option."""
        return {}

    @property
    def options(self) -> dict[str, int | float]:
        return {name: getattr(self, name) for name in self.bounds()}


@dataclass(frozen=True)
class Test:
    """Held-out sequences of one size and kind."""

    task: Task
    size: Size
    kind: str = ""
    """How they differ from training sequences, other than in their size; empty: they do not."""

    @property
    def tokens(self) -> int:
        return self.task.tokens(self.size)

    def __str__(self) -> str:
        return label(self.size, self.kind)


def label(size: Size, kind: str) -> str:
    """Return what a test is called."""
    length = " x ".join(f"{each:,}" for each in size)
    return f"length {length}{', ' if kind else ''}{kind}"
