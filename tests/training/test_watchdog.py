"""Processes that really hang: named, their stacks written, ended; and those that go on, left alone."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from tape_ds.training import watchdog
from tape_ds.training.watchdog import Beat, Board, Watchdog, judge

HERE = socket.gethostname()
FORK = multiprocessing.get_context("fork")  # everything is imported already; a new interpreter takes seconds


@dataclass
class Child:
    """A process of its own, which a test may leave hanging."""

    process: Any
    folder: Path

    @property
    def output(self) -> str:
        """What it wrote to stdout."""
        return (self.folder / "out").read_text()

    @property
    def error(self) -> str:
        """What it wrote to stderr."""
        return (self.folder / "err").read_text()

    def code(self) -> int | None:
        """Exit code, when it has ended."""
        self.process.join(40)
        return self.process.exitcode


@pytest.fixture
def start(tmp_path):
    """Starts functions as processes; none of them outlives its test."""
    started: list[Child] = []

    def start(work: Callable[..., None], *arguments: Any) -> Child:
        folder = tmp_path / f"child-{len(started)}"
        folder.mkdir()
        process = FORK.Process(target=redirected, args=(folder, work, *arguments), daemon=True)
        process.start()
        started.append(Child(process, folder))
        return started[-1]

    yield start
    for child in started:
        child.process.kill()
        child.process.join()


def redirected(folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """``work`` with its output in files."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    with open(1, "w", closefd=False) as sys.stdout:
        work(*arguments)
    os._exit(0)


def hang() -> None:
    """Longer than any test waits."""
    time.sleep(60)


def stuck(folder: Path) -> None:
    """A run of one process whose data never comes."""
    with Watchdog(folder, 0, 1, 0.5) as dog:
        dog.beat(12, "data")
        print("in the buffer")
        hang()


def one_of_two(folder: Path, rank: int, port: int, who: int, phase: str) -> None:
    """A rank of a real job, for some seconds; ``who`` hangs in ``phase`` of step 3."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    with Watchdog(folder, rank, 2, 1.5) as dog:
        for step in range(40):
            for word in ("data", "backward"):
                dog.beat(step, word)
                if (step, rank, word) == (3, who, phase):
                    hang()
            distributed.all_reduce(torch.ones(1))
            time.sleep(0.1)
            (folder / f"step-{rank}").write_text(str(step))


def waiting(folder: Path, siblings: dict[int, tuple[str, int]]) -> None:
    """A rank inside a collective."""
    watchdog.LOST_SECONDS = 1.0
    with Watchdog(folder, 1, 3, 0, siblings=siblings) as dog:
        dog.beat(7, "backward")
        hang()


def suspended(folder: Path) -> None:
    """Works for a while without a word."""
    with Watchdog(folder, 0, 1, 1.5):
        (folder / "up").touch()
        time.sleep(0.5)


def until(path: Path) -> None:
    """Wait for a file."""
    limit = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < limit, f"{path.name} never came"
        time.sleep(0.01)


def start_pair(start: Callable[..., Child], folder: Path, who: int | None, phase: str = "") -> list[Child]:
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


def test_a_rank_that_hangs_alone_is_ended_and_leaves_its_stacks(start, tmp_path):
    """What it had printed is not lost with it."""
    child = start(stuck, tmp_path / "stacks")
    assert child.code() == watchdog.EXIT_CODE == 4, child.error
    assert child.output == "in the buffer\n"
    path = tmp_path / "stacks" / "rank-0.txt"
    assert "watchdog: no progress for " in child.error
    assert f"at step 12 in data; there is no other rank; stacks: {path}" in child.error
    assert f"rank 0 (process {child.process.pid} on {HERE})" in path.read_text() and "in hang" in path.read_text()


@pytest.mark.parametrize(("who", "phase"), [(0, "data"), (1, "data"), (1, "backward")])
def test_the_rank_that_the_others_wait_for_is_named(start, tmp_path, who, phase):
    """In a real collective, also when both said the same word last; both leave their stacks, and both end."""
    pair = start_pair(start, tmp_path, who, phase)
    hanging, waits = pair[who], pair[1 - who]
    assert (hanging.code(), waits.code()) == (4, 4), hanging.error + waits.error
    assert f"watchdog on rank {1 - who}: no progress for " in waits.error and "at step 3 in backward" in waits.error
    assert f"rank {who} is missing: last seen in '{phase}' of step 3 " in waits.error
    assert f"(process {hanging.process.pid} on {HERE})" in waits.error
    assert f"at step 3 in {phase}; the other ranks wait for this one" in hanging.error
    assert "in hang" in (tmp_path / f"rank-{who}.txt").read_text()
    assert "all_reduce" in (tmp_path / f"rank-{1 - who}.txt").read_text()


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_stopped_holds_nobody_up(start, tmp_path, who, monkeypatch):
    """It can neither speak nor answer; rank 0 takes the job's store with it."""
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 1.0)
    pair = start_pair(start, tmp_path, who=None)
    until(tmp_path / f"step-{who}")
    os.kill(pair[who].process.pid, signal.SIGSTOP)
    other = pair[1 - who]
    assert other.code() == 4, other.error
    said = "the job's store does not answer: rank 0" if who == 0 else "rank 1 is missing: last seen in '"
    assert said in other.error
    assert (tmp_path / f"rank-{1 - who}.txt").is_file()


def test_a_dead_rank_of_this_host_ends_the_others(start, tmp_path):
    """Some backends would wait for it for ever. A rank on another host is none of ours."""
    sibling = start(hang).process
    child = start(waiting, tmp_path, {0: (HERE, sibling.pid), 2: ("elsewhere", 1)})
    time.sleep(2.5)
    assert child.process.is_alive(), "it ended although the other rank lives"
    sibling.kill()  # and is not waited for: what is left is a zombie, as under a launcher
    assert child.code() == watchdog.LOST_EXIT_CODE == 1
    assert f"rank 0 (process {sibling.pid}) is gone, and this rank waits at step 7 in backward: ending" in child.error


def test_progress_and_pauses_are_left_alone(tmp_path, ended):
    """Twice the limit of each; then the same length without a word."""
    with Watchdog(tmp_path, 0, 1, 0.6) as dog:
        for step in range(24):
            dog.beat(step, "forward")
            time.sleep(0.05)
        with dog.pause():
            time.sleep(1.2)
        dog.beat(24, "saving")
        time.sleep(1.2)
        assert ended == [], "progress, a pause or a save within four times the limit was taken for a hang"
        dog.beat(24, "data")
        time.sleep(1.2)
    assert ended == [4]


@pytest.mark.parametrize(("seconds", "wait"), [(0, 0.5), (60, 0.5)])
def test_a_watchdog_that_was_closed_or_never_bites_says_nothing(tmp_path, ended, seconds, wait):
    with Watchdog(tmp_path, 0, 1, seconds) as dog:
        time.sleep(wait)
    dog.close()
    assert ended == [] and list(tmp_path.iterdir()) == []
    assert not any(thread.is_alive() for thread in dog._threads)


def test_a_stopped_process_did_not_hang(start, tmp_path):
    """Ctrl-Z for longer than the limit, then fg."""
    child = start(suspended, tmp_path)
    until(tmp_path / "up")
    os.kill(child.process.pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(child.process.pid, signal.SIGCONT)
    assert child.code() == 0, child.error


def test_stacks_that_cannot_be_written_are_printed(tmp_path, ended, capfd):
    (tmp_path / "file").write_text("no folder")
    with Watchdog(tmp_path / "file", 0, 1, 0.2):
        time.sleep(1)
    error = capfd.readouterr().err
    assert ended == [4] and "stacks: above (" in error and "test_stacks_that_cannot_be_written" in error


def test_another_ranks_alarm_ends_this_one_too(tmp_path, ended, monkeypatch):
    """Each rank's clock starts at its own last word: the first to bite must not end the others without their stacks."""
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.2)
    store = distributed.HashStore()
    with Watchdog(tmp_path, 0, 2, 4.0, store=store) as dog:
        dog.beat(3, "backward")
        time.sleep(0.6)
        other = Board(store, 1, 2)
        other.confer(Beat(3, 0, "data", time.time()))
        time.sleep(2.5)
    assert ended == [4] and (tmp_path / "rank-0.txt").is_file()


def test_words_come_back_as_they_were_pinned(monkeypatch):
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.2)
    store = distributed.HashStore()
    mine, other = Board(store, 0, 3), Board(store, 2, 3)
    mine.pin(Beat(1, 2, "data", 5.0))
    found = other.read()
    assert found == [Beat(1, 2, "data", 5.0, False, os.getpid(), HERE), None, None]
    assert not mine.alarmed()
    other.confer(Beat(1, 0, "data", 5.0))
    assert mine.alarmed()


def beats(*places) -> list[Beat | None]:
    """Words at these places; None for a rank that was never heard of."""
    now = time.time() - 55
    return [place and Beat(*place[:2], "data", now, place[2:] == (True,), 4711, "x") for place in places]


@pytest.mark.parametrize(
    ("rank", "places", "behind", "text", "speaker"),
    [
        (
            0,
            [(12, 3), (12, 0)],
            [1],
            "rank 1 is missing: last seen in 'data' of step 12 55 s ago (process 4711 on x)",
            True,
        ),
        (1, [(12, 3), (12, 0)], [1], "the other ranks wait for this one", True),
        (0, [(12, 0), (11, 9)], [1], "rank 1 is missing: last seen in 'data' of step 11", True),
        (2, [(12, 3), (12, 0), (12, 3)], [1], "rank 1 is missing", False),
        (1, [(12, 0), (12, 3), (12, 3)], [0], "rank 0 is missing", True),
        (0, [(12, 3), (12, 0), (12, 1)], [1], "rank 1 is missing", True),
        (0, [(12, 3), None], [1], "rank 1 is missing: never seen", True),
        (0, [(12, 3, True), (12, 3)], [1], "rank 1 is missing", True),
        (0, [(12, 2, True), (12, 3)], [0], "the other ranks wait for this one", True),
        (0, [(12, 3, True), (12, 3, True)], [], "all ranks are at the same place", True),
        (0, [(12, 3), (12, 3)], [], "all ranks are at the same place: a deadlock, a dead network, or work that", True),
        (1, [(12, 3), (12, 3)], [], "all ranks are at the same place", False),
        (0, [(12, 3), *[(12, 0)] * 9], [*range(1, 10)], "rank 4 is missing: ", True),
    ],
)
def test_who_is_behind(rank, places, behind, text, speaker):
    """The rank that came least far; one of the others says so, and so does that rank itself."""
    verdict = judge(rank, beats(*places))
    assert (verdict.behind, verdict.speaker) == (behind, speaker)
    assert text in verdict.text


def test_many_missing_ranks_are_counted():
    text = judge(0, beats((12, 3), *[(12, 0)] * 9)).text
    assert text.count("is missing") == 4 and text.endswith("; 5 more ranks are missing")


def test_a_silent_store_is_said():
    verdict = judge(1, None)
    assert verdict.speaker and "the job's store does not answer: rank 0" in verdict.text


def test_words_count_on_within_a_step(tmp_path):
    """So that accumulation, where phases come again, has places that compare."""
    dog = Watchdog(tmp_path, 0, 1, 60)
    places = []
    for step, phase in [(1, "data"), (1, "forward"), (1, "data"), (2, "data")]:
        dog.beat(step, phase)
        places.append((dog._beat.step, dog._beat.count))
    assert places == [(1, 0), (1, 1), (1, 2), (2, 0)]
