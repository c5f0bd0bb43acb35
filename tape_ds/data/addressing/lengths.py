"""The lengths that a task is trained and tested at."""

from collections.abc import Sequence
from dataclasses import dataclass

from tape_ds.data.addressing.task import AddressingTask

REACHES = (1, 1.5, 2)
"""Lengths of tests unless given, in the longest that is trained."""


@dataclass(frozen=True)
class Test:
    """Sequences that are asked together: of one kind and one length."""

    length: int
    kind: str
    """What tells them from sequences of training, beside their length; empty: nothing."""
    task: AddressingTask

    def __str__(self) -> str:
        return f"length {self.length:,}{', ' if self.kind else ''}{self.kind}"


def tests(task: AddressingTask, lengths: Sequence[int]) -> list[Test]:
    """Return every kind of sequences that the task is tested on, at every length."""
    return [Test(length, kind, tested) for kind, tested in task.tested().items() for length in lengths]


def reached(task: AddressingTask, trained: int) -> list[int]:
    """Return lengths of tests for a model that is trained up to ``trained``, none longer than sequences can be."""
    step = task.step
    return sorted({min(int(trained * reach) // step * step, task.longest) for reach in REACHES})


def wrong_length(task: AddressingTask, length: int) -> str | None:
    """Return what to give instead of a length that the task does not have; None: it has it."""
    if task.shortest <= length <= task.longest and length % task.step == 0:
        return None
    even = "" if task.step == 1 else f", a multiple of {task.step}"
    return f"give {task.shortest:,} to {task.longest:,}{even}"
