"""Tasks of addressing: the answer is at a place that only the sequence's own content names.

The split is by sequence: a keyed hash of its words holds one in :data:`ONE_IN` out for tests. So no tested sequence is
ever trained on, whatever the seed, the length or the number of sequences; and which are held out is independent of what
they ask.
"""

import hashlib
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tape_ds.data.generated.task import SPECIAL, GeneratedSample, Size, Task, Test

LONGEST = 4096
"""The largest length, unless a task has less."""
REACHES = (1, 1.5, 2)
"""Default lengths of tests, in multiples of the longest trained one."""
# Part of the fingerprint: raise it when a task of addressing draws other sequences for the same seed.
FORMAT = 1
KEY = b"tape-ds addressing, split 1"
"""Of the hash: another key, another split."""
ONE_IN = 8
_LIMIT = 2**64 // ONE_IN


@dataclass(frozen=True)
class AddressingTask(Task):
    """A kind of sequence that a number, its length, measures. Options are integers and floats."""

    step = 1
    """Lengths are multiples of it."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """Every word of a sequence, in the order of their ids."""

    @property
    @abstractmethod
    def shortest(self) -> int:
        """The smallest length with enough different sequences to train and to test on."""

    @property
    def longest(self) -> int:
        return LONGEST

    @abstractmethod
    def sequence(self, generator: random.Random, length: int) -> GeneratedSample:
        """Draw a sequence of exactly this length, held out or not."""

    @abstractmethod
    def bounds(self) -> Mapping[str, tuple[float, float]]: ...

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return (*SPECIAL, *self.words)

    def draw(self, generator: random.Random, size: Size, *, test: bool) -> GeneratedSample:
        while True:
            sample = self.sequence(generator, *size)
            if is_test(sample.words) == test:
                return sample

    def held_out(self, size: Size, count: int, seed: int) -> list[GeneratedSample]:
        (length,) = size
        generators = (random.Random(f"{self!r} {length} {seed} {number}") for number in range(count))
        return [self.draw(generator, size, test=True) for generator in generators]

    def training_size(self, trained: Size, own: random.Random, step_seed: str) -> Size:
        # one length for all sequences of a step: a batch without padding saves a third of a small model's time
        shortest, longest = trained
        return (random.Random(step_seed).choice(range(shortest, longest + 1, self.step)),)

    def kinds(self) -> Mapping[str, "AddressingTask"]:
        """Return the kinds of sequences that a model is tested on, by how they differ from training."""
        return {"": self}

    def most_tokens(self, sizes: Sequence[int]) -> int:
        return self.tokens((max(sizes),))

    def tests(self, tested: Sequence[int]) -> list[Test]:
        return [Test(task, (length,), kind) for kind, task in self.kinds().items() for length in tested]

    def fingerprint(self, sizes: Sequence[int]) -> str:
        return hashlib.sha256(repr((FORMAT, KEY, ONE_IN, self, tuple(sizes))).encode()).hexdigest()[:16]

    def reached(self, trained: int) -> list[int]:
        """Return the default lengths of tests for a model that is trained up to ``trained``."""
        return sorted({min(int(trained * reach) // self.step * self.step, self.longest) for reach in REACHES})

    def wrong_length(self, length: int) -> str | None:
        """Return a remedy for a length that the task does not have."""
        if self.shortest <= length <= self.longest and length % self.step == 0:
            return None
        even = "" if self.step == 1 else f", a multiple of {self.step}"
        return f"give {self.shortest:,} to {self.longest:,}{even}"


def is_test(words: Sequence[str]) -> bool:
    """Return whether a sequence is never trained on."""
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8, key=KEY).digest()
    return int.from_bytes(digest, "little") < _LIMIT
