"""Tasks of addressing: the answer is at a place that only the sequence's content names.

Look-back and look-ahead: the letter k places before, or after, a marker; neither content nor the distance from the
query gives it alone. Flip-flop, selective copy and multi-query recall are published: Liu et al. 2023
(arXiv:2306.00946); Gu & Dao 2023 (arXiv:2312.00752) and Golovneva et al. 2024 (arXiv:2405.18719); Arora et al. 2023
(arXiv:2312.04927).

The split is by sequence: a keyed hash of its words holds one in :data:`ONE_IN` out for tests. So no tested sequence is
ever trained on, whatever the seed, the length or the number of sequences, and being held out is independent of what a
sequence asks.
"""

import hashlib
import itertools
import random
import string
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tape_ds.data.generated.task import SPECIAL, GeneratedSample, Size, Task, Test

# the largest length, unless a task has less
LONGEST = 4096
# default lengths of tests, in multiples of the longest trained one
REACHES = (1, 1.5, 2)
LETTERS = string.ascii_letters
# Part of the fingerprint: raise it when a task of addressing draws other sequences for the same seed.
FORMAT = 1
# of the hash: another key is another split
KEY = b"tape-ds addressing, split 1"
ONE_IN = 8


def is_test(words: Sequence[str]) -> bool:
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8, key=KEY).digest()
    return int.from_bytes(digest, "little") < 2**64 // ONE_IN


@dataclass(frozen=True)
class AddressingTask(Task):
    """A kind of sequence whose size is its length; its fields, integers and floats, are the options."""

    # no fields: constants of a task, or set by `derive`
    # lengths are multiples of it
    step: ClassVar[int] = 1
    # the smallest length with enough different sequences to train and to test on
    shortest: ClassVar[int]
    longest: ClassVar[int] = LONGEST
    # tokens of questions and answers after the text
    asked_tokens: ClassVar[int] = 0

    @abstractmethod
    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        """Draw a sequence of this length, held out or not."""

    def kinds(self) -> Mapping[str, "AddressingTask"]:
        """Return the kinds of sequences that a model is tested on, by how they differ from training."""
        return {"": self}

    def derive(
        self,
        words: tuple[str, ...],
        signs: tuple[str, ...],
        *,
        answers: int,
        shortest: int,
        asked_tokens: int,
        longest: int = LONGEST,
    ) -> None:
        """Set what follows from the options; ``answers`` is the number of possible ones."""
        vocabulary = (*SPECIAL, *words)
        chance = 1 / answers
        derived = {"shortest": shortest, "longest": longest, "asked_tokens": asked_tokens}
        # the instance is frozen
        vars(self).update(derived, vocabulary=vocabulary, signs=signs, chance=chance)

    def draw(self, generator: random.Random, size: Size, *, test: bool) -> GeneratedSample:
        while True:
            sample = self.sequence(generator, *size)
            if is_test(sample.words) == test:
                return sample

    def held_out(self, size: Size, count: int, seed: int) -> list[GeneratedSample]:
        (length,) = size
        samples = []
        for number in range(count):
            # a seed for each: a smaller count gives the first of them
            generator = random.Random(f"{self!r} {length} {seed} {number}")
            samples.append(self.draw(generator, size, test=True))
        return samples

    def training_size(self, trained: Size, generator: random.Random, step_seed: str) -> Size:
        # one length for all sequences of a step: a batch without padding saves a third of a small model's time
        shortest, longest = trained
        return (random.Random(step_seed).choice(range(shortest, longest + 1, self.step)),)

    def tokens(self, size: Sequence[int]) -> int:
        return max(size) + self.asked_tokens

    def tests(self, tested: Sequence[int]) -> list[Test]:
        tests = []
        for kind, task in self.kinds().items():
            tests += [Test(task, (length,), kind) for length in tested]
        return tests

    def fingerprint(self, sizes: Sequence[int]) -> str:
        decisive = repr((FORMAT, KEY, ONE_IN, self, tuple(sizes)))
        return hashlib.sha256(decisive.encode()).hexdigest()[:16]

    def wrong_length(self, length: int) -> str | None:
        """Return a remedy for a length that the task does not have."""
        if self.shortest <= length <= self.longest and length % self.step == 0:
            return None
        remedy = f"give {self.shortest} to {self.longest}"
        if self.step > 1:
            remedy += f", a multiple of {self.step}"
        return remedy


@dataclass(frozen=True)
class Pointing(AddressingTask):
    """``x b ^1 q f ... ?1 2 x``: letters with markers among them, then a marker's question, k, and the letter.

    Letters are uniform and independent, and so are the places of markers among those from which every k can be asked.
    The question is uniform among all pairs of a marker and a k.
    """

    # of the alphabet
    letters: int = 26
    # the largest k; the smallest is 1
    most: int = 16
    # in each text, all different; a question names one
    markers: int = 1
    # after each text
    queries: int = 1

    sizes = ("tokens of the text before the question",)
    bounds = {
        "letters": (2, len(LETTERS)),
        "most": (1, 1024),
        "markers": (1, 64),
        "queries": (1, "most"),
    }
    # of the letter from the marker: -1 or 1
    direction = 0

    def __post_init__(self) -> None:
        numbers = range(1, self.markers + 1)
        signs = tuple(map("^{}".format, numbers))
        questions = map("?{}".format, numbers)
        self.derive(
            (*LETTERS[: self.letters], *signs, *questions, *map(str, range(1, self.most + 1))),
            signs,
            answers=self.letters,
            # room for all markers where every k can be asked
            shortest=max(16, self.most + 2 * self.markers),
            asked_tokens=3 * self.queries,
        )

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        markers = range(1, self.markers + 1)
        room = range(length - self.most)
        # every k can be asked there: the letter is within the text
        if self.direction < 0:
            room = range(self.most, length)
        places = dict(zip(markers, generator.sample(room, self.markers), strict=True))
        words = generator.choices(LETTERS[: self.letters], k=length)
        for marker, place in places.items():
            words[place] = f"^{marker}"
        # never the answer to a question
        taken = set(places.values())
        questions = []
        for marker, place in places.items():
            for k in range(1, self.most + 1):
                if place + self.direction * k not in taken:
                    questions.append((marker, k))
        for marker, k in generator.sample(questions, self.queries):
            words += (f"?{marker}", str(k), words[places[marker] + self.direction * k])
        return GeneratedSample(tuple(words), tuple(range(length + 2, len(words), 3)))


class LookBack(Pointing):
    name = "look_back"
    direction = -1


class LookAhead(Pointing):
    name = "look_ahead"
    direction = 1


@dataclass(frozen=True)
class FlipFlop(AddressingTask):
    """``w 1 i 0 i 1 r 1``: instructions with a bit each; a read has the bit of the last write, and is an answer.

    As published: the first instruction is a write and the last a read; each between is an ignore with probability
    ``ignore``, otherwise equally likely a write or a read; the bits of writes and ignores are uniform.
    """

    # probability in training
    ignore: float = 0.8
    # in the tests with long distances
    sparse: float = 0.98
    # in the tests with many writes
    dense: float = 0.1

    name = "flip_flop"
    sizes = ("tokens, instructions and bits alike",)
    bounds = dict.fromkeys(("ignore", "sparse", "dense"), (0, 1))
    step = 2
    vocabulary = (*SPECIAL, "w", "r", "i", "0", "1")
    signs = ("w", "r", "i")
    chance = 0.5
    # with nothing but ignores in between, 2,048 sequences
    shortest = 24

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        change = (1 - self.ignore) / 2
        between = generator.choices(self.signs, (change, change, self.ignore), k=length // 2 - 2)
        words: list[str] = []
        answers = []
        written = ""
        for instruction in ("w", *between, "r"):
            bit = written if instruction == "r" else generator.choice("01")
            if instruction == "r":
                answers.append(len(words) + 1)
            elif instruction == "w":
                written = bit
            words += (instruction, bit)
        return GeneratedSample(tuple(words), tuple(answers))

    def kinds(self) -> Mapping[str, AddressingTask]:
        kinds: dict[str, AddressingTask] = {"": self}
        for share in (self.sparse, self.dense):
            kinds[f"ignore {share:g}"] = replace(self, ignore=share)
        return kinds


@dataclass(frozen=True)
class SelectiveCopy(AddressingTask):
    """``_ c _ _ a | c a``: items among blanks, and after the bar the items in their order, all of them answers.

    Items are uniform and independent, and so are their places.
    """

    # different items
    values: int = 16
    # in each text; the rest is blank
    items: int = 16

    name = "selective_copy"
    sizes = ("items and blanks",)
    bounds = {"values": (2, len(LETTERS)), "items": (4, 1024)}

    def __post_init__(self) -> None:
        self.derive(
            (*"_|", *LETTERS[: self.values]),
            ("|",),
            answers=self.values,
            # some blanks, and enough different sequences
            shortest=self.items + 4,
            asked_tokens=1 + self.items,
        )

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        places = sorted(generator.sample(range(length), self.items))
        copied = generator.choices(LETTERS[: self.values], k=self.items)
        words = ["_"] * length
        for place, item in zip(places, copied, strict=True):
            words[place] = item
        answers = range(length + 1, length + 1 + self.items)
        return GeneratedSample((*words, "|", *copied), tuple(answers))


@dataclass(frozen=True)
class Recall(AddressingTask):
    """``k3 v7 k1 v2 ... k1 v2``: keys with values, then some of the keys again, whose values are the answers.

    The keys of a sequence are distinct, and so are those asked for; values are uniform and independent.
    """

    # different keys
    keys: int = 64
    # different values
    values: int = 64
    # keys that are asked for
    queries: int = 8

    name = "recall"
    sizes = ("tokens of the pairs before the first query",)
    bounds = {"keys": (8, LONGEST // 2), "values": (2, LONGEST), "queries": (1, "keys")}
    step = 2

    def __post_init__(self) -> None:
        values = tuple(map("v{}".format, range(self.values)))
        self.derive(
            (*map("k{}".format, range(self.keys)), *values),
            # a value ends its pair
            values,
            answers=self.values,
            # a pair for each query, and enough different sequences
            shortest=2 * max(self.queries, 4),
            asked_tokens=2 * self.queries,
            longest=2 * self.keys,
        )

    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        chosen = generator.sample(range(self.keys), length // 2)
        values = generator.choices(range(self.values), k=len(chosen))
        pairs = list(zip(map("k{}".format, chosen), map("v{}".format, values), strict=True))
        pairs += generator.sample(pairs, self.queries)
        words = tuple(itertools.chain.from_iterable(pairs))
        return GeneratedSample(words, tuple(range(length + 1, len(words), 2)))
