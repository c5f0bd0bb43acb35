"""Flip-flop, selective copy and multi-query recall: what was written last, what was written at all, and what belongs
to what.

Published: flip-flop language, Liu et al. 2023 (arXiv:2306.00946); selective copying, Gu & Dao 2023 (arXiv:2312.00752)
and Golovneva et al. 2024 (arXiv:2405.18719); multi-query associative recall, Arora et al. 2023 (arXiv:2312.04927).
"""

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tape_ds.data.generated.addressing import LONGEST, AddressingTask
from tape_ds.data.generated.task import GeneratedSample, Size

WRITE, READ, IGNORE = "w", "r", "i"


@dataclass(frozen=True)
class FlipFlop(AddressingTask):
    """``w 1 i 0 i 1 r 1``: instructions with a bit each; a read has the bit of the last write, and is an answer.

    As published: the first instruction is a write and the last a read, each between is an ignore with probability
    ``ignore`` and else a write or a read alike, and the bits of writes and ignores are uniform.
    """

    ignore: float = 0.8
    """Probability of an ignore, in training."""
    sparse: float = 0.98
    """The same in the tests with long distances."""
    dense: float = 0.1
    """The same in the tests with many writes."""

    name = "flip_flop"
    sizes = ("tokens, instructions and bits alike",)
    step = 2
    words = (WRITE, READ, IGNORE, "0", "1")
    signs = (WRITE, READ, IGNORE)
    chance = 0.5
    shortest = 24  # with nothing but ignores in between, 2,048 sequences

    def tokens(self, size: Size) -> int:
        (length,) = size
        return length

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        change = (1 - self.ignore) / 2
        between = generator.choices((WRITE, READ, IGNORE), (change, change, self.ignore), k=length // 2 - 2)
        words: list[str] = []
        answers = []
        written = ""
        for instruction in (WRITE, *between, READ):
            bit = written if instruction == READ else generator.choice("01")
            if instruction == READ:
                answers.append(len(words) + 1)
            elif instruction == WRITE:
                written = bit
            words += (instruction, bit)
        return GeneratedSample(tuple(words), tuple(answers))

    def kinds(self) -> Mapping[str, AddressingTask]:
        others = (self.sparse, self.dense)
        return {"": self} | {f"ignore {each:g}": replace(self, ignore=each) for each in others}

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        return dict.fromkeys(("ignore", "sparse", "dense"), (0, 1))


@dataclass(frozen=True)
class SelectiveCopy(AddressingTask):
    """``_ c _ _ a | c a``: items among blanks, and after the bar the items in their order, all of them answers.

    Items are uniform and independent, and so are their places.
    """

    values: int = 16
    """Number of different items."""
    items: int = 16
    """In each text; the rest is blank."""

    name = "selective_copy"
    sizes = ("items and blanks",)
    signs = ("|",)

    @property
    def words(self) -> tuple[str, ...]:
        return (*"_|", *string.ascii_letters[: self.values])

    @property
    def chance(self) -> float:
        return 1 / self.values

    @property
    def shortest(self) -> int:
        return self.items + 4  # some blanks, and enough different sequences

    def tokens(self, size: Size) -> int:
        (length,) = size
        return length + 1 + self.items

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        places = sorted(generator.sample(range(length), self.items))
        copied = generator.choices(string.ascii_letters[: self.values], k=self.items)
        words = ["_"] * length
        for place, item in zip(places, copied, strict=True):
            words[place] = item
        return GeneratedSample((*words, "|", *copied), tuple(range(length + 1, length + 1 + self.items)))

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        return {"values": (2, len(string.ascii_letters)), "items": (4, 1024)}


@dataclass(frozen=True)
class Recall(AddressingTask):
    """``k3 v7 k1 v2 ... k1 v2``: keys with values, and then some of the keys again, whose values are the answers.

    The keys of a sequence differ from one another, and so do those asked for; values are uniform and independent.
    """

    keys: int = 64
    """Number of different keys."""
    values: int = 64
    """Number of different values."""
    queries: int = 8
    """Keys that are asked for."""

    name = "recall"
    sizes = ("tokens of the pairs before the first query",)
    step = 2

    @property
    def words(self) -> tuple[str, ...]:
        return (*(f"k{each}" for each in range(self.keys)), *self.signs)

    @property
    def signs(self) -> tuple[str, ...]:
        return tuple(f"v{each}" for each in range(self.values))  # a value ends its pair

    @property
    def chance(self) -> float:
        return 1 / self.values

    @property
    def shortest(self) -> int:
        return 2 * max(self.queries, 4)  # a pair for each query, and enough different sequences

    @property
    def longest(self) -> int:
        return 2 * self.keys

    def tokens(self, size: Size) -> int:
        (length,) = size
        return length + 2 * self.queries

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        chosen = generator.sample(range(self.keys), length // 2)
        values = generator.choices(range(self.values), k=len(chosen))
        pairs = [(f"k{key}", f"v{value}") for key, value in zip(chosen, values, strict=True)]
        pairs += generator.sample(pairs, self.queries)
        words = tuple(word for pair in pairs for word in pair)
        return GeneratedSample(words, tuple(range(length + 1, len(words), 2)))

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        return {"keys": (8, LONGEST // 2), "values": (2, LONGEST), "queries": (1, self.keys)}
