"""Work that does not depend on the rank, shared out over the ranks of a run, or over teams of them: where ranks share
a model's heads and columns, none of them can score anything alone."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

_between: list[Callable[[], None]] = []
_team: list[int] = [1]

Job = TypeVar("Job")
Result = TypeVar("Result")


def share_out(work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """``[work(job) for job in jobs]``, each done by one team; every rank must call it and gets all results.

    Under ZeRO-3 all ranks must take part in each forward of a model: a rank without a job of its own in the last round
    repeats one, and jobs must call the same modules in the same order, whichever they are. Results are pickled.
    """
    team, teams = _team_and_teams()
    mine: list[Result] = []
    for first in range(0, len(jobs), teams):
        for look in _between:
            look()
        own = first + team < len(jobs)
        result = work(jobs[first + team if own else first])
        if own:
            mine.append(result)
    if teams == 1:
        return mine
    gathered: list[list[Result]] = [[] for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(gathered, mine)
    by_team = gathered[:: _team[0]]  # all of a team have the same
    return [by_team[number % teams][number // teams] for number in range(len(jobs))]


def work_in_teams(size: int) -> None:
    """From now on so many neighbouring ranks do each job together."""
    _team[:] = [size]


def look_between(look: Callable[[], None] | None) -> None:
    """Have all ranks call ``look`` before each round of every :func:`share_out` from now on, which may end the work by
    an exception; None: nothing more."""
    _between[:] = [look] if look is not None else []


def _team_and_teams() -> tuple[int, int]:
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank() // _team[0], torch.distributed.get_world_size() // _team[0]
