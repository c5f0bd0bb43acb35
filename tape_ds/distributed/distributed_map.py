"""Distribute work that does not depend on the rank over the ranks of a run, or over teams of them: ranks that share a
model's heads and columns must score together."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tqdm.auto import tqdm

from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import is_main_process

_on_round: list[Callable[[], None]] = []
_team_size = 1
_shows_bar = True

Job = TypeVar("Job")
Result = TypeVar("Result")


def distributed_map(work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """Return ``[work(job) for job in jobs]``, each computed by one team; every rank must call it and gets all results.

    Under ZeRO-3 all ranks must take part in each forward of a model: a team without a job in the last round repeats
    one, and all jobs must call the same modules in the same order. Results are pickled.
    """
    ranks = RankSync()
    team = ranks.rank // _team_size
    teams = max(1, ranks.world // _team_size)
    results: list[Result] = []
    # None: shown on a terminal only
    hidden = None if _shows_bar and is_main_process() else True
    for first in tqdm(range(0, len(jobs), teams), leave=False, disable=hidden):
        for call in _on_round:
            call()
        round_jobs = jobs[first : first + teams]
        has_job = team < len(round_jobs)
        # without one, the round's first again: its forwards have collectives
        job = round_jobs[team] if has_job else round_jobs[0]
        result = work(job)
        if has_job:
            results.append(result)
    if teams == 1:
        return results
    # ranks of a team have the same results
    by_team = ranks.objects(results)[::_team_size]
    return [by_team[number % teams][number // teams] for number in range(len(jobs))]


def set_team_size(size: int) -> None:
    """Let groups of ``size`` neighbouring ranks do each job together from now on."""
    global _team_size
    _team_size = size


def on_round(call: Callable[[], None] | None, *, bar: bool = True) -> None:
    """Have all ranks call ``call`` before each round of every :func:`distributed_map` from now on; None: nothing. It
    may end the work by an exception. ``bar``: whether a terminal shows a progress bar."""
    global _shows_bar
    _on_round.clear()
    if call is not None:
        _on_round.append(call)
    _shows_bar = bar
