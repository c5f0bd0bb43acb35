"""Who scores which piece: a scorer hands its jobs to a function that carries each of them out.

So whoever calls the scorer may share the jobs among processes, and under ZeRO-3 keep all ranks in step, while the
scorer knows of neither.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class Each(Protocol):
    """Calls a function on every item and gives the results in their order."""

    def __call__(self, work: Callable[[Job], Result], jobs: Sequence[Job], /) -> list[Result]:
        """``[work(job) for job in jobs]``."""


def in_turn(work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """``work`` on every job, one after another."""
    return [work(job) for job in jobs]
