"""Work shared out over ranks, which are threads here."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tape_ds.distributed import distributed_map, rank_sync


@pytest.fixture
def as_ranks(monkeypatch):
    """Calls a function once per rank, all at the same time; returns what each gave."""

    def run(function, world):
        own, sent, meeting = threading.local(), [None] * world, threading.Barrier(world, timeout=20)

        def gather(gathered, mine, group):
            assert group == "gloo", "not the devices' backend, to which pickles would be copied"
            sent[own.rank] = mine
            meeting.wait()
            gathered[:] = sent

        def as_rank(rank):
            own.rank = rank
            return function()

        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: own.rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)
        monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
        monkeypatch.setattr(rank_sync, "join", lambda: "gloo")
        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(as_rank, range(world)))

    return run


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("jobs", [0, 1, 2, 5, 6])
def test_every_job_in_order_on_every_rank_and_all_in_step(as_ranks, world, jobs):
    """A rank without a job of its own does another's as well: ZeRO-3 would wait for it for ever."""

    def part():
        done = []
        found = distributed_map.distributed_map(
            lambda job: done.append(job) or job * 10, range(jobs)
        )
        return found, done

    for found, done in (parts := as_ranks(part, world)):
        assert found == [job * 10 for job in range(jobs)]
        assert len(done) == -(-jobs // world)
    assert set().union(*(done for _, done in parts)) == set(range(jobs))


@pytest.mark.parametrize("world, jobs", [(2, 3), (4, 3), (4, 5)])
def test_a_team_does_each_job_together(as_ranks, monkeypatch, world, jobs):
    """Two neighbours do the same jobs in the same order, and every rank gets all results, each once."""
    monkeypatch.setattr(distributed_map, "_team_size", 2)

    def part():
        done = []
        return distributed_map.distributed_map(
            lambda job: done.append(job) or job * 10, range(jobs)
        ), done

    parts = as_ranks(part, world)
    assert all(found == [job * 10 for job in range(jobs)] for found, _ in parts)
    assert all(parts[rank][1] == parts[rank + 1][1] for rank in range(0, world, 2))
    assert sum(len(done) for _, done in parts[::2]) >= jobs


def test_without_a_process_group_one_process_does_it_all():
    assert distributed_map.distributed_map(str, [1, 2, 3]) == ["1", "2", "3"]


@pytest.mark.parametrize("bar", [True, False])
def test_a_terminal_shows_the_bar_unless_the_run_hides_bars(capsys, monkeypatch, bar):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    distributed_map.on_round(None, bar=bar)
    try:
        distributed_map.distributed_map(lambda job: job, range(3))
    finally:
        distributed_map.on_round(None)
    assert ("0/3" in capsys.readouterr().err) == bar
