"""Flip-flop, selective copy and multi-query recall: what was written last, what was written at all, and what belongs
to what.

Published: flip-flop language, Liu et al. 2023 (arXiv:2306.00946); selective copying, Gu & Dao 2023 (arXiv:2312.00752)
and Golovneva et al. 2024 (arXiv:2405.18719); multi-query associative recall, Arora et al. 2023 (arXiv:2312.04927).
"""

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tape_ds.data.addressing.task import LONGEST, AddressingSequence, AddressingTask

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
    counts = "tokens, instructions and bits alike"
    step = 2

    @property
    def words(self) -> tuple[str, ...]:
        """Instructions and bits."""
        return (WRITE, READ, IGNORE, "0", "1")

    @property
    def signs(self) -> tuple[str, ...]:
        """The instructions."""
        return (WRITE, READ, IGNORE)

    @property
    def chance(self) -> float:
        """One of two bits."""
        return 0.5

    @property
    def shortest(self) -> int:
        """With nothing but ignores in between, 2,048 sequences."""
        return 24

    def tokens(self, length: int) -> int:
        """The length is that of the sequence."""
        return length

    def draw(self, generator: random.Random, length: int) -> AddressingSequence:
        """Instruction by instruction."""
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
        return AddressingSequence(tuple(words), tuple(answers))

    def tested(self) -> Mapping[str, AddressingTask]:
        """As trained, and with other probabilities of an ignore."""
        others = (self.sparse, self.dense)
        return {"": self} | {f"ignore {each:g}": replace(self, ignore=each) for each in others}

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Probabilities."""
        return dict.fromkeys(("ignore", "sparse", "dense"), (0, 1))


@dataclass(frozen=True)
class SelectiveCopy(AddressingTask):
    """``_ c _ _ a | c a``: items among blanks, and behind the bar the items in their order, all of them answers.

    Items are uniform and independent, and so are the places that they have.
    """

    values: int = 16
    """Different items that there are."""
    items: int = 16
    """In each text; the rest is blank."""

    name = "selective_copy"
    counts = "items and blanks"

    @property
    def words(self) -> tuple[str, ...]:
        """The blank, the bar, and the items."""
        return (*"_|", *string.ascii_letters[: self.values])

    @property
    def signs(self) -> tuple[str, ...]:
        """The bar."""
        return ("|",)

    @property
    def chance(self) -> float:
        """One item of those that there are."""
        return 1 / self.values

    @property
    def shortest(self) -> int:
        """With some blanks, and sequences enough."""
        return self.items + 4

    def tokens(self, length: int) -> int:
        """Items and blanks, the bar, and the items again."""
        return length + 1 + self.items

    def draw(self, generator: random.Random, length: int) -> AddressingSequence:
        """Return places first, then items."""
        places = sorted(generator.sample(range(length), self.items))
        copied = generator.choices(string.ascii_letters[: self.values], k=self.items)
        words = ["_"] * length
        for place, item in zip(places, copied, strict=True):
            words[place] = item
        return AddressingSequence((*words, "|", *copied), tuple(range(length + 1, self.tokens(length))))

    def bounds(self) -> dict[str, tuple[float, float]]:
        """The alphabet ends."""
        return {"values": (2, len(string.ascii_letters)), "items": (4, 1024)}


@dataclass(frozen=True)
class Recall(AddressingTask):
    """``k3 v7 k1 v2 ... k1 v2``: keys with values, and then some of the keys again, whose values are the answers.

    The keys of a sequence are different from one another, and so are those that are asked for; values are uniform and
    independent.
    """

    keys: int = 64
    """Different keys that there are."""
    values: int = 64
    """Different values that there are."""
    queries: int = 8
    """Keys that are asked for."""

    name = "recall"
    counts = "tokens of the pairs before the first query"
    step = 2

    @property
    def words(self) -> tuple[str, ...]:
        """Keys and values."""
        return (*(f"k{each}" for each in range(self.keys)), *self.signs)

    @property
    def signs(self) -> tuple[str, ...]:
        """The values, which end their pairs."""
        return tuple(f"v{each}" for each in range(self.values))

    @property
    def chance(self) -> float:
        """One value of those that there are."""
        return 1 / self.values

    @property
    def shortest(self) -> int:
        """A pair for each query, and sequences enough."""
        return 2 * max(self.queries, 4)

    @property
    def longest(self) -> int:
        """A pair for each key."""
        return 2 * self.keys

    def tokens(self, length: int) -> int:
        """Pairs, and as many tokens for each query."""
        return length + 2 * self.queries

    def draw(self, generator: random.Random, length: int) -> AddressingSequence:
        """Pairs first, then which of them are asked for."""
        chosen = generator.sample(range(self.keys), length // 2)
        values = generator.choices(range(self.values), k=len(chosen))
        pairs = [(f"k{key}", f"v{value}") for key, value in zip(chosen, values, strict=True)]
        pairs += generator.sample(pairs, self.queries)
        words = tuple(word for pair in pairs for word in pair)
        return AddressingSequence(words, tuple(range(length + 1, len(words), 2)))

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Enough for different sequences."""
        return {"keys": (8, LONGEST // 2), "values": (2, LONGEST), "queries": (1, self.keys)}
