"""Sequences of training: sample ``i`` of a run is a pure function of (seed, i), drawn when it is asked for.

The bucket method: each sample's sizes are uniform over all pairs 1 .. n, 1 .. m, and then its operands among all of
these sizes that are not the test's. So no length is rarer than another, as it would be among numbers below a bound.
"""

import hashlib
from collections.abc import Mapping

import torch

from tape_ds.data.arithmetic import split
from tape_ds.data.arithmetic.tasks import TASKS, ArithmeticSample
from tape_ds.data.arithmetic.vocabulary import EOS, ids_of
from tape_ds.data.dataset import item
from tape_ds.data.drawn import DrawnSequences

# Part of the fingerprint: raise it when the code of this folder gives other sequences for the same seed.
FORMAT = 1


class ArithmeticSequences(DrawnSequences):
    """A run's samples. The targets are the answer and EOS."""

    def __init__(self, task_name: str, max_digits: int, max_digits_second: int, *, samples: int, seed: int):
        """Serve ``samples`` samples of a task, with sizes up to ``max_digits`` and ``max_digits_second``.

        Raises:
            KeyError: there is no such task.
        """
        super().__init__(samples=samples, seed=seed)
        self.task = TASKS[task_name]
        self.largest = (max_digits, max_digits_second)
        self._ids = ids_of(self.task.vocabulary)

    def sample(self, index: int) -> ArithmeticSample:
        """Return the problem behind number ``index``."""
        generator = self.generator(index)
        i, j = (1 + generator.randrange(most) for most in self.largest)
        return split.draw(self.task, generator, i, j, test=False)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, targets = encode(self.sample(index), self._ids)
        return item(ids, slice(len(ids) - targets, None))


def encode(sample: ArithmeticSample, ids: Mapping[str, int]) -> tuple[list[int], int]:
    """Return the ids of a whole sequence (prompt, answer, EOS), and how many at its end are targets (answer and
    EOS)."""
    sequence = [ids[letter] for letter in sample.prompt + sample.answer]
    return [*sequence, EOS], len(sample.answer) + 1


def fingerprint(task_name: str, max_digits: int, max_digits_second: int) -> str:
    """Of all the problems that a run may be trained on, and of how they are drawn."""
    parts = (FORMAT, split.KEY, split.ONE_IN, split.SMALL, split.SMALL_ONE_IN, task_name, max_digits, max_digits_second)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
