"""Work that does not depend on the rank, shared out over the ranks of a run."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

_between: list[Callable[[], None]] = []

Job = TypeVar("Job")
Result = TypeVar("Result")


def share_out(work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """``[work(job) for job in jobs]``, each done by one rank; every rank must call it and gets all results.

    Under ZeRO-3 all ranks must take part in each forward of a model: a rank without a job of its own in the last round
    repeats one, and jobs must call the same modules in the same order, whichever they are. Results are pickled.
    """
    rank, world = _rank_and_world()
    mine: list[Result] = []
    for first in range(0, len(jobs), world):
        for look in _between:
            look()
        own = first + rank < len(jobs)
        result = work(jobs[first + rank if own else first])
        if own:
            mine.append(result)
    if world == 1:
        return mine
    gathered: list[list[Result]] = [[] for _ in range(world)]
    torch.distributed.all_gather_object(gathered, mine)
    return [gathered[number % world][number // world] for number in range(len(jobs))]


def look_between(look: Callable[[], None] | None) -> None:
    """Have all ranks call ``look`` before each round of every :func:`share_out` from now on, which may end the work by
    an exception; None: nothing more."""
    _between[:] = [look] if look is not None else []


def _rank_and_world() -> tuple[int, int]:
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
