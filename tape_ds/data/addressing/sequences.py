"""Sequences of training and of tests, by number, and what keeps them apart.

A keyed hash of a sequence's words says whether it is a test's or training's: one sequence in :data:`ONE_IN` is a
test's. So no sequence that is tested is ever trained on, whatever the seed, the length or the number of sequences of
either; which sequences belong where is independent of what they ask.
"""

import hashlib
import random
from collections.abc import Sequence

import torch

from tape_ds.data.addressing.task import AddressingSequence, AddressingTask
from tape_ds.data.arithmetic.vocabulary import ids_of
from tape_ds.data.dataset import item
from tape_ds.data.drawn import DrawnSequences

# Part of the fingerprint: raise it when the code of this folder gives other sequences for the same seed.
FORMAT = 1
KEY = b"tape-ds addressing, split 1"
"""Of the hash: another key, another split."""
ONE_IN = 8
"""Sequences, of which one is a test's."""
_LIMIT = 2**64 // ONE_IN


class AddressingSequences(DrawnSequences):
    """A run's sequences. Lengths are uniform, the same for all sequences of a step; the targets are the answers.

    A batch has no padding then, which saves a third of the time of a small model's step.
    """

    def __init__(self, task: AddressingTask, lengths: tuple[int, int], *, samples: int, seed: int, step_sequences: int):
        """Serve ``samples`` sequences of lengths between ``lengths``, both included, ``step_sequences`` to a step."""
        super().__init__(samples=samples, seed=seed)
        self.step_sequences = step_sequences
        self.task = task
        self._lengths = range(lengths[0], lengths[1] + 1, task.step)
        self._ids = ids_of(task.vocabulary)

    def sequence(self, index: int) -> AddressingSequence:
        """Sequence ``index`` in words."""
        length = random.Random(f"length {self.seed} {index // self.step_sequences}").choice(self._lengths)
        return draw(self.task, self.generator(index), length, test=False)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sequence = self.sequence(index)
        return item([self._ids[word] for word in sequence.words], list(sequence.answers))


def held_out(task: AddressingTask, length: int, count: int, seed: int) -> list[AddressingSequence]:
    """``count`` sequences of a test; fewer are the first of more. They depend on the arguments alone."""
    return [
        draw(task, random.Random(f"{task!r} {length} {seed} {number}"), length, test=True) for number in range(count)
    ]


def draw(task: AddressingTask, generator: random.Random, length: int, test: bool) -> AddressingSequence:
    """Return a sequence of this length, among those of the tests or among all others."""
    while True:
        sequence = task.draw(generator, length)
        if is_test(sequence.words) == test:
            return sequence


def is_test(words: Sequence[str]) -> bool:
    """Return whether a sequence is never trained on."""
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8, key=KEY).digest()
    return int.from_bytes(digest, "little") < _LIMIT


def fingerprint(task: AddressingTask, lengths: Sequence[int]) -> str:
    """Of all sequences of these lengths, and of how they are drawn."""
    return hashlib.sha256(repr((FORMAT, KEY, ONE_IN, task, tuple(lengths))).encode()).hexdigest()[:16]
