"""The tasks: what is asked, in which letters, and the right answer.

A problem's two sizes (i, j) make the grid on which lengths are trained and tested; each task says what they count. The
text is ``PROMPT=ANSWER``, numbers least significant digit first, so that every digit of a sum follows from what stands
before it. Operands are held as one reads them (most significant digit first); the text alone is reversed.

Published (the TAPE paper's arithmetic code, a fork of that of McLeish et al. 2024, arXiv:2405.17399): numbers have
exactly i and j digits, so no leading zero, and of one digit 1 .. 9. Ours, where that code draws other problems:

- a difference may be negative; its sign comes first, since every digit that follows depends on it: ``3-21=-9``;
- numbers of one list to sort all have i digits, and equal ones keep their order;
- either vector of a bitwise OR may hold the one, or both, or neither (published: exactly one, the shorter).
"""

import itertools
import math
import random
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import add, mul, sub

Operands = tuple[str, ...]

SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
"""The first tokens of every vocabulary."""
CALCULATOR = (*SPECIAL, *string.digits, *"+-x= ")
"""The published 19 tokens. Nothing here writes the space; it keeps its id."""
LETTERS = string.ascii_letters
"""Names of the numbers of a list."""
LONGEST = 1000
"""Of a size that nothing else limits: Python writes no number of more than 4,300 digits, and a product has twice its
operands'."""
TESTED = 2
"""Lengths of tests unless given, in those that are trained."""
_LIST = ":,="
SORTER = (*SPECIAL, *string.digits, *_LIST, *LETTERS)


@dataclass(frozen=True)
class ArithmeticSample:
    """A problem and its answer."""

    prompt: str
    """All that is given, up to and with the equals sign: ``21+43=``."""
    answer: str
    """What is to be written, without EOS: ``64``."""
    operands: Operands
    """As one reads them: ``("12", "34")``."""


class ArithmeticTask(ABC):
    """A kind of problem."""

    name: str
    vocabulary: tuple[str, ...]
    """Its tokens, in the order of their ids."""
    signs: str = "+-x="
    """Letters that stand between numbers."""
    sizes: tuple[str, str]
    """What the two sizes of a problem count."""
    largest: tuple[int, int] = (LONGEST, LONGEST)
    """Of each size."""

    @abstractmethod
    def ranges(self, i: int, j: int) -> list[range]:
        """Return the values that each operand has in problems of exactly these sizes, independently of the others."""

    def operand(self, value: int, among: range) -> str:
        """Return one of these values as one reads it."""
        return str(value)

    def draw_operands(self, generator: random.Random, i: int, j: int) -> Operands:
        """Operands of exactly these sizes, uniform among all of them."""
        return tuple(self.operand(generator.randrange(each.start, each.stop), each) for each in self.ranges(i, j))

    def count(self, i: int, j: int) -> int:
        """Return how many different operands of exactly these sizes there are."""
        return math.prod(each.stop - each.start for each in self.ranges(i, j))

    def every(self, i: int, j: int) -> Iterator[Operands]:
        """Return all :meth:`count` of them."""
        return itertools.product(*([self.operand(value, each) for value in each] for each in self.ranges(i, j)))

    def size_of(self, operands: Operands) -> tuple[int, int]:
        """Return the two sizes of these operands."""
        first, second = operands
        return len(first), len(second)

    @abstractmethod
    def prompt(self, operands: Operands) -> str:
        """Return the question's text, with the equals sign."""

    @abstractmethod
    def answer(self, operands: Operands) -> str:
        """Return the right answer's text, without EOS."""

    @abstractmethod
    def longest(self, i: int, j: int) -> int:
        """Return tokens of prompt, answer and EOS at most."""

    def tested(self, first: int, second: int, longest: int | None = None) -> tuple[int, int]:
        """Return sizes of the longest test of a model that is trained to these: in their proportion, so that the larger
        one is ``longest`` (default: :data:`TESTED` times it), and neither larger than any there is."""
        longer = TESTED if longest is None else longest / max(first, second)
        return min(round(first * longer), self.largest[0]), min(round(second * longer), self.largest[1])

    def sample(self, operands: Operands) -> ArithmeticSample:
        """Return the problem with these operands."""
        return ArithmeticSample(self.prompt(operands), self.answer(operands), operands)

    def draw(self, generator: random.Random, i: int, j: int) -> ArithmeticSample:
        """Return a problem of exactly these sizes, uniform among all of them."""
        return self.sample(self.draw_operands(generator, i, j))


def numbers_of(digits: int) -> range:
    """Return all numbers of so many digits; of one digit, those from 1."""
    return range(10 ** (digits - 1), 10**digits)


def reversed_number(number: int) -> str:
    """Least significant digit first, behind its sign if it is negative."""
    digits = str(abs(number))[::-1]
    return f"-{digits}" if number < 0 else digits


@dataclass(frozen=True)
class TwoNumbers(ArithmeticTask):
    """An operation on two numbers of i and j digits."""

    name: str
    sign: str
    operation: Callable[[int, int], int]
    answer_digits: Callable[[int, int], int]
    """Characters of an answer at most, from i and j."""
    vocabulary: tuple[str, ...] = CALCULATOR
    sizes: tuple[str, str] = ("digits of the first operand", "digits of the second operand")

    def ranges(self, i: int, j: int) -> list[range]:
        """Two numbers."""
        return [numbers_of(i), numbers_of(j)]

    def prompt(self, operands: Operands) -> str:
        """Return both reversed, the sign between them."""
        first, second = operands
        return f"{first[::-1]}{self.sign}{second[::-1]}="

    def answer(self, operands: Operands) -> str:
        """Return the operation's result, reversed."""
        first, second = operands
        return reversed_number(self.operation(int(first), int(second)))

    def longest(self, i: int, j: int) -> int:
        """Return both operands, two signs, the answer and EOS."""
        return i + 1 + j + 1 + self.answer_digits(i, j) + 1


class Sorting(ArithmeticTask):
    """``a:64957,b:99963,c:10218=bac``: names of numbers of i digits, in the order of the numbers."""

    name = "sorting"
    vocabulary = SORTER
    signs = _LIST
    sizes = ("digits of every number", "numbers in the list")
    largest = (LONGEST, len(LETTERS))

    def ranges(self, i: int, j: int) -> list[range]:
        """Return a list."""
        return [numbers_of(i)] * j

    def size_of(self, operands: Operands) -> tuple[int, int]:
        """Digits of the first number, and how many there are."""
        return len(operands[0]), len(operands)

    def prompt(self, operands: Operands) -> str:
        """Return the list, a letter before each number."""
        named = (f"{letter}:{number[::-1]}" for letter, number in zip(LETTERS[: len(operands)], operands, strict=True))
        return ",".join(named) + "="

    def answer(self, operands: Operands) -> str:
        """Return the letters, the smallest number's first."""
        return "".join(LETTERS[place] for place in sorted(range(len(operands)), key=lambda place: int(operands[place])))

    def longest(self, i: int, j: int) -> int:
        """Return a letter, a colon, a number and a comma (or the equals sign) each; a letter each; EOS."""
        return (i + 3) * j + j + 1


class BitwiseOr(ArithmeticTask):
    """``0010+010000=011000``: two vectors of i and j places, each with at most one 1, aligned at their beginnings.

    It asks for the alignment of places and nothing else: there is no carry, and a place can only be found by counting.
    The sign is that of addition, as published.
    """

    name = "bitwise_or"
    vocabulary = CALCULATOR
    sizes = ("places of the first vector", "places of the second vector")

    def ranges(self, i: int, j: int) -> list[range]:
        """Return the place of each vector's 1, or the place behind the last: none."""
        return [range(i + 1), range(j + 1)]

    def operand(self, value: int, among: range) -> str:
        """Return a vector with a 1 at this place."""
        return "".join("1" if place == value else "0" for place in range(len(among) - 1))

    def prompt(self, operands: Operands) -> str:
        """Return both as they are: a vector's first place comes first."""
        first, second = operands
        return f"{first}+{second}="

    def answer(self, operands: Operands) -> str:
        """As many places as the longer one."""
        pairs = itertools.zip_longest(*operands, fillvalue="0")
        return "".join("1" if "1" in pair else "0" for pair in pairs)

    def longest(self, i: int, j: int) -> int:
        """Return both vectors, two signs, the answer and EOS."""
        return i + 1 + j + 1 + max(i, j) + 1


TASKS: Mapping[str, ArithmeticTask] = {
    task.name: task
    for task in (
        TwoNumbers("addition", "+", add, lambda i, j: max(i, j) + 1),
        TwoNumbers("subtraction", "-", sub, lambda i, j: max(i, j) + 1),
        TwoNumbers("multiplication", "x", mul, lambda i, j: i + j),
        Sorting(),
        BitwiseOr(),
    )
}
