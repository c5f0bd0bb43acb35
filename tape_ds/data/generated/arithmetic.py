"""Arithmetic: the problems, their letters, the right answers, and which problems are held out for tests.

A problem's two sizes (i, j) span the grid on which lengths are trained and tested. The text is ``PROMPT=ANSWER`` and
EOS, numbers least significant digit first, so that every digit of a sum follows from earlier ones. Operands are stored
most significant digit first; only the text is reversed. Answer and EOS are targets.

As in the TAPE paper's arithmetic code (a fork of that of McLeish et al. 2024, arXiv:2405.17399) numbers have exactly i
and j digits. Other than there, a difference may be negative, its sign first (``3-21=-9``); numbers to sort all have i
digits, and equal ones keep their order; either vector of a bitwise OR may have the one, or both, or neither.

The split is by operands in any order: a model trained on a + b knows b + a. A keyed hash of a set of operands holds
about 1 % of a cell (two sizes, in either order) out for tests. A cell of at most :data:`SMALL` problems is enumerated
instead: the tenth of its sets with the lowest hashes is held out, at least one, so that the smallest cells are trained
and tested as well.
"""

import functools
import hashlib
import itertools
import math
import random
import string
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import add, mul, sub

from tape_ds.data.generated.task import SPECIAL, GeneratedSample, Size, Task, Test

Operands = tuple[str, ...]

# the published 19 tokens; the space is unused and keeps its id
CALCULATOR = (*SPECIAL, *string.digits, *"+-x= ")
# names of the numbers of a list
LETTERS = string.ascii_letters
SORTER = (*SPECIAL, *string.digits, *":,=", *LETTERS)
# The largest size, unless a task has less: Python prints at most 4,300 digits, and a product has twice its operands'.
LONGEST = 1000
# default length of tests, in multiples of the trained one
TESTED = 2

# Part of the fingerprint: raise it when a task of arithmetic draws other sequences for the same seed.
FORMAT = 1
# of the hash: another key is another split
KEY = b"tape-ds arithmetic, split 1"
# sets of operands for each one that is held out
ONE_IN = 100
# problems of a cell that is enumerated
SMALL = 20_000
SMALL_ONE_IN = 10
# A cell with fewer problems than this multiple of those asked for is searched, not drawn from.
_CROWDED = 4 * ONE_IN


class ArithmeticTask(Task):
    """A kind of problem; its operands are independent of each other."""

    sizes: tuple[str, str]
    by_character = True
    largest: tuple[int, int] = (LONGEST, LONGEST)
    vocabulary = CALCULATOR
    signs: Sequence[str] = "+-x="

    @abstractmethod
    def ranges(self, i: int, j: int) -> list[range]:
        """Return the values of each operand in problems of these sizes."""

    @abstractmethod
    def written(self, operands: Operands) -> tuple[str, str]:
        """Return the question, with the equals sign, and the right answer, without EOS."""

    def operand(self, value: int, among: range) -> str:
        """Return the operand of a value from the range ``among``."""
        return str(value)

    def count(self, i: int, j: int) -> int:
        # not len(): it fails for numbers of more than 18 digits
        return math.prod(among.stop - among.start for among in self.ranges(i, j))

    def every(self, i: int, j: int) -> Iterator[Operands]:
        operands = []
        for among in self.ranges(i, j):
            operands.append([self.operand(value, among) for value in among])
        return itertools.product(*operands)

    def sample(self, operands: Operands) -> GeneratedSample:
        prompt, answer = self.written(operands)
        words = (*prompt, *answer, "[EOS]")
        return GeneratedSample(words, tuple(range(len(prompt), len(words))))

    def is_test(self, operands: Operands, size: Size) -> bool:
        small = _small_tests(self, size)
        if small is None:
            return _hash(self, operands) < 2**64 // ONE_IN
        return tuple(sorted(operands)) in small

    def draw(self, generator: random.Random, size: Size, *, test: bool) -> GeneratedSample:
        ranges = self.ranges(*size)
        while True:
            values = [generator.randrange(among.start, among.stop) for among in ranges]
            operands = tuple(map(self.operand, values, ranges))
            if self.is_test(operands, size) == test:
                return self.sample(operands)

    def held_out(self, size: Size, count: int, seed: int) -> list[GeneratedSample]:
        """Return different problems; a smaller ``count`` gives the first of them, except in a cell that is searched."""
        i, j = size
        generator = random.Random(f"cell {self.name} {i} {j} {seed}")
        # drawing would find the same ones again and again
        if self.count(i, j) < _CROWDED * count:
            held_out = [operands for operands in self.every(i, j) if self.is_test(operands, size)]
            chosen = generator.sample(held_out, min(count, len(held_out)))
            return list(map(self.sample, chosen))
        drawn: dict[GeneratedSample, None] = {}
        while len(drawn) < count:
            drawn[self.draw(generator, size, test=True)] = None
        return list(drawn)

    def training_size(self, trained: Size, generator: random.Random, step_seed: str) -> Size:
        # the bucket method: sizes first, so that no length is rarer than another, as among numbers below a bound
        return tuple(1 + generator.randrange(most) for most in trained)

    def tests(self, tested: Sequence[int]) -> list[Test]:
        sizes = itertools.product(*(range(1, last + 1) for last in tested))
        return list(map(functools.partial(Test, self), sizes))

    def reached(self, trained: Size, longest: int | None = None) -> tuple[int, int]:
        """Return the sizes of the longest test for these trained sizes: in their proportion, the larger one ``longest``
        (default: :data:`TESTED` times it), none beyond :attr:`largest`."""
        first, second = trained
        longer = TESTED if longest is None else longest / max(first, second)
        largest_first, largest_second = self.largest
        return min(round(first * longer), largest_first), min(
            round(second * longer), largest_second
        )

    def fingerprint(self, sizes: Sequence[int]) -> str:
        parts = (FORMAT, KEY, ONE_IN, SMALL, SMALL_ONE_IN, self.name, *sizes)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@functools.cache
def _small_tests(task: ArithmeticTask, size: Size) -> frozenset[Operands] | None:
    """Return the held-out sets of operands of a small cell, each sorted, or None for a large cell; the same for (j, i)
    if that has the same sets."""
    if task.count(*size) > SMALL:
        return None
    sets = {tuple(sorted(operands)) for operands in task.every(*size)}
    ranked = sorted(sets, key=lambda operands: (_hash(task, operands), operands))
    return frozenset(ranked[: max(1, len(ranked) // SMALL_ONE_IN)])


def _hash(task: ArithmeticTask, operands: Operands) -> int:
    text = f"{task.name}:{','.join(sorted(operands))}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=KEY).digest(), "little")


@dataclass(frozen=True)
class TwoNumbers(ArithmeticTask):
    """``21+43=64``: numbers of i and j digits without leading zeros."""

    name: str
    sign: str
    operation: Callable[[int, int], int]
    sizes = ("digits of the first operand", "digits of the second operand")

    def ranges(self, i: int, j: int) -> list[range]:
        # of one digit, from 1
        return [range(10 ** (digits - 1), 10**digits) for digits in (i, j)]

    def written(self, operands: Operands) -> tuple[str, str]:
        first, second = operands
        number = self.operation(int(first), int(second))
        # the last digit first, as one adds by hand
        answer = str(abs(number))[::-1]
        if number < 0:
            answer = f"-{answer}"
        return f"{first[::-1]}{self.sign}{second[::-1]}=", answer

    def tokens(self, size: Sequence[int]) -> int:
        i, j = size
        # a sum may have a digit more, a difference a sign
        answer = max(i, j) + 1
        if self.operation is mul:
            answer = i + j
        return i + 1 + j + 1 + answer + 1


class Sorting(ArithmeticTask):
    """``a:64957,b:99963,c:10218=bac``: names of numbers of i digits, in the order of the numbers."""

    name = "sorting"
    vocabulary = SORTER
    signs = ":,="
    sizes = ("digits of every number", "numbers in the list")
    largest = (LONGEST, len(LETTERS))

    def ranges(self, i: int, j: int) -> list[range]:
        return [range(10 ** (i - 1), 10**i)] * j

    def written(self, operands: Operands) -> tuple[str, str]:
        named = []
        for letter, number in zip(LETTERS, operands, strict=False):
            named.append(f"{letter}:{number[::-1]}")
        order = sorted(range(len(operands)), key=lambda place: int(operands[place]))
        return ",".join(named) + "=", "".join(LETTERS[place] for place in order)

    def tokens(self, size: Sequence[int]) -> int:
        i, j = size
        # a letter, a colon, a number and a comma (or the equals sign) each; a letter each; EOS
        return (i + 3) * j + j + 1


class BitwiseOr(ArithmeticTask):
    """``0010+010000=011000``: two vectors of i and j places, each with at most one 1, aligned at their beginnings.

    It tests the alignment of places alone: without a carry, a place can only be found by counting.
    The sign is that of addition, as published.
    """

    name = "bitwise_or"
    sizes = ("places of the first vector", "places of the second vector")

    def ranges(self, i: int, j: int) -> list[range]:
        # the place of each vector's 1; after the last: none
        return [range(i + 1), range(j + 1)]

    def operand(self, value: int, among: range) -> str:
        places = len(among) - 1
        # a 1 after the last place is none
        return "1".rjust(value + 1, "0").ljust(places, "0")[:places]

    def written(self, operands: Operands) -> tuple[str, str]:
        first, second = operands
        pairs = itertools.zip_longest(first, second, fillvalue="0")
        return f"{first}+{second}=", "".join(map(max, pairs))

    def tokens(self, size: Sequence[int]) -> int:
        i, j = size
        return i + 1 + j + 1 + max(i, j) + 1


ARITHMETIC: Sequence[ArithmeticTask] = (
    TwoNumbers("addition", "+", add),
    TwoNumbers("subtraction", "-", sub),
    TwoNumbers("multiplication", "x", mul),
    Sorting(),
    BitwiseOr(),
)
