"""Processes that really hang: named, their stacks written, ended; and those that progress, left alone."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed

from tape_ds.resilience import watchdog
from tape_ds.resilience.watchdog import Beat, Watchdog, who_is_behind

HERE = socket.gethostname()
# everything is imported already; a new interpreter takes seconds
FORK = multiprocessing.get_context("fork")


class Child:
    """A process that a test may leave hanging; its output is in files."""

    def __init__(self, folder: Path, work: Callable[..., None], *arguments: Any):
        folder.mkdir()
        self.out, self.err = folder / "out", folder / "err"
        self.process = FORK.Process(target=self.run, args=(work, *arguments), daemon=True)
        self.process.start()

    def run(self, work: Callable[..., None], *arguments: Any) -> None:
        for number, file in ((1, self.out), (2, self.err)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        with open(1, "w", closefd=False) as sys.stdout:
            work(*arguments)
        os._exit(0)

    def code(self) -> int | None:
        self.process.join(120)
        return self.process.exitcode


@pytest.fixture
def start(tmp_path):
    """Starts functions as processes; none of them outlives its test."""
    started: list[Child] = []

    def start(work: Callable[..., None], *arguments: Any) -> Child:
        started.append(Child(tmp_path / f"child-{len(started)}", work, *arguments))
        return started[-1]

    yield start
    for child in started:
        child.process.kill()
        child.process.join()


def hang() -> None:
    """Longer than any test waits."""
    time.sleep(600)


def one_of_two(folder: Path, rank: int, port: int, who: int, phase: str) -> None:
    """A rank of a real job, for some seconds; ``who`` hangs in ``phase`` of step 3."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=600))
    print("in the buffer")
    with Watchdog(folder, rank, 2, 3.0) as dog:
        for step in range(600):
            for word in ("data", "backward"):
                dog.beat(step, word)
                if (step, rank, word) == (3, who, phase):
                    hang()
            distributed.all_reduce(torch.ones(1))
            time.sleep(0.1)
            (folder / f"step-{rank}").write_text(str(step))


def until(what: Callable[[], Any]) -> None:
    """Wait until it holds."""
    limit = time.monotonic() + 120
    while not what():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.01)


def start_pair(
    start: Callable[..., Child], folder: Path, who: int | None, phase: str = ""
) -> list[Child]:
    """Two ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [start(one_of_two, folder, rank, port, who, phase) for rank in (0, 1)]


@pytest.fixture
def ended(monkeypatch):
    """Exit codes with which a watchdog of this process would have ended it."""
    codes: list[int] = []
    monkeypatch.setattr(watchdog.os, "_exit", codes.append)
    return codes


@pytest.mark.parametrize(("who", "phase"), [(0, "data"), (1, "backward")])
def test_the_rank_that_the_others_wait_for_is_named(start, tmp_path, who, phase):
    """In a real collective, also when both recorded the same phase last; both leave their stacks, and both end."""
    pair = start_pair(start, tmp_path, who, phase)
    hanging, waits = pair[who], pair[1 - who]
    assert (hanging.code(), waits.code()) == (4, 4), hanging.err.read_text() + waits.err.read_text()
    assert hanging.out.read_text() == "in the buffer\n", "what was printed is not lost"
    message = waits.err.read_text()
    assert (
        f"watchdog on rank {1 - who}: no progress for " in message
        and "at step 3 in backward" in message
    )
    assert f"rank {who} is missing: last seen in '{phase}' of step 3 " in message
    assert f"(process {hanging.process.pid} on {HERE})" in message
    assert f"at step 3 in {phase}; the other ranks wait for this one" in hanging.err.read_text()
    assert "in hang" in (tmp_path / f"rank-{who}.txt").read_text()
    assert "all_reduce" in (tmp_path / f"rank-{1 - who}.txt").read_text()


@pytest.mark.parametrize("who", [0, 1])
def test_a_stopped_rank_does_not_hold_up_the_others(start, tmp_path, who, monkeypatch):
    """It can neither speak nor answer; rank 0 takes the job's store with it."""
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 1.0)
    pair = start_pair(start, tmp_path, who=None)
    until((tmp_path / f"step-{who}").exists)
    os.kill(pair[who].process.pid, signal.SIGSTOP)
    other = pair[1 - who]
    assert other.code() == 4, other.err.read_text()
    said = (
        "the job's store does not answer: rank 0"
        if who == 0
        else "rank 1 is missing: last seen in '"
    )
    assert said in other.err.read_text()
    assert (tmp_path / f"rank-{1 - who}.txt").is_file()


def bites_after(dog, monkeypatch, at_each_tick=lambda seconds: None):
    """Seconds of a fake clock after which the watchdog ends the process; ``at_each_tick`` may move the clock."""
    clock = [0.0]

    def wait(tick):
        clock[0] += tick
        clock[0] += at_each_tick(clock[0]) or 0
        return clock[0] > 1e5

    monkeypatch.setattr(dog, "_closed", SimpleNamespace(wait=wait))
    own = {
        "monotonic": lambda: clock[0],
        "time": time.time,
        "strftime": time.strftime,
        "sleep": time.sleep,
    }
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(**own))
    dog._watch()
    return clock[0]


def test_progress_is_left_alone_and_a_save_may_take_four_times_as_long(
    tmp_path, ended, monkeypatch
):
    dog = Watchdog(tmp_path, 0, 1, 60)
    assert (
        300
        < bites_after(
            dog, monkeypatch, lambda now: dog.beat(int(now), "forward") if now < 250 else None
        )
        < 320
    )
    dog.beat(400, "saving")
    assert 240 < bites_after(dog, monkeypatch) < 250
    dog.beat(400, "backward")  # some rank works on its data until 250
    working = bites_after(
        dog, monkeypatch, lambda now: vars(dog).update(_job_work=now) if now < 250 else None
    )
    assert 300 < working < 320
    # Ctrl-Z for longer than the limit, then fg: a stopped process did not hang
    dog.beat(401, "forward")
    assert 1000 < bites_after(dog, monkeypatch, lambda now: 1000 if now == 10 else 0) < 1070
    assert ended == [4, 4, 4, 4]


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_closed_or_disabled_watchdog_does_nothing(tmp_path, ended, seconds):
    with Watchdog(tmp_path, 0, 1, seconds) as dog:
        time.sleep(0.5)
    assert ended == [] and list(tmp_path.iterdir()) == []
    assert not any(thread.is_alive() for thread in dog._threads)


def test_stacks_that_cannot_be_written_are_printed(tmp_path, ended, capfd):
    (tmp_path / "file").write_text("no folder")
    with Watchdog(tmp_path / "file", 0, 1, 0.2):
        until(lambda: ended)
    assert "test_stacks_that_cannot_be_written" in capfd.readouterr().err


def test_another_ranks_work_is_progress_of_all_and_its_alarm_ends_this_one_too(
    tmp_path, ended, monkeypatch
):
    """A rank may wait in a collective for one that still tokenises. Each rank's clock starts at its own last word: the
    first to bite must not end the others without their stacks."""
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.2)
    store = distributed.HashStore()
    other = distributed.PrefixStore("watchdog", store)
    with Watchdog(tmp_path, 0, 2, 600.0, store=store) as dog:
        dog.beat(3, "backward")
        other.add("work", 1)
        until(lambda: dog._job_work == 1)
        other.set("alarm", "1")
        until(lambda: ended)
    assert ended == [4] and (tmp_path / "rank-0.txt").is_file()


def beats(*places) -> list[Beat | None]:
    """Words at these places; None for a rank that was never heard of."""
    now = time.time() - 55
    return [
        place and Beat(*place[:2], place[2:] == (True,), "data", now, "process 4711 on x")
        for place in places
    ]


@pytest.mark.parametrize(
    ("rank", "places", "text"),
    [
        (
            0,
            [(12, 3), (12, 0)],
            "rank 1 is missing: last seen in 'data' of step 12 55 s ago (process 4711 on x)",
        ),
        (1, [(12, 3), (12, 0)], "the other ranks wait for this one"),
        (0, [(12, 0), (11, 9)], "rank 1 is missing: last seen in 'data' of step 11"),
        (2, [(12, 3), (12, 0), (12, 3)], None),
        (0, [(12, 3), None], "rank 1 is missing: never seen"),
        (0, [(12, 3, True), (12, 3)], "rank 1 is missing"),
        (0, [(12, 2, True), (12, 3)], "the other ranks wait for this one"),
        (
            0,
            [(12, 3), (12, 3)],
            "all ranks are at the same place: a deadlock, a dead network, or work that",
        ),
        (1, [(12, 3), (12, 3)], None),
        (0, [(12, 3), *[(12, 0)] * 9], "; 5 more ranks are missing"),
        (1, [], "the job's store does not answer: rank 0"),
    ],
)
def test_who_is_behind(rank, places, text):
    """The rank that came least far is named by one of the others and by itself."""
    found = who_is_behind(rank, beats(*places))
    assert found is None if text is None else text in found
