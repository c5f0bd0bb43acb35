"""A run's folder is locked as long as its ranks live, and not a moment longer."""

import errno
import fcntl
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time

import pytest

from tape_ds.distributed import process_info
from tape_ds.distributed.process_info import ProcessInfo
from tape_ds.errors import UserError
from tape_ds.resilience import run_lock
from tape_ds.resilience.run_lock import RunLock

FORK = multiprocessing.get_context("fork")  # a process that imports everything again takes seconds


def hold_until_told(pipe, output, rank, forks):
    """Body of a process that holds a lock; ``forks`` one that does nothing."""
    lock = RunLock(output, rank)
    lock.acquire()
    child = os.fork() if forks else None
    if child == 0:
        time.sleep(60)
        os._exit(0)
    pipe.send(child)
    while pipe.recv() == "release":
        lock.release()
        pipe.send("released")


class Holding:
    def __init__(self, output, rank, forks=False):
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=hold_until_told, args=(theirs, output, rank, forks))
        self.process.start()
        theirs.close()
        self.child = self.pipe.recv()
        self.pid = self.process.pid

    def release(self):
        self.pipe.send("release")
        assert self.pipe.recv() == "released"

    def kill(self):
        self.process.kill()
        self.process.join()


@pytest.fixture
def hold():
    """Starts processes that hold a rank's lock, and ends them after the test."""
    started = []

    def start(*arguments, **options) -> Holding:
        started.append(Holding(*arguments, **options))
        return started[-1]

    yield start
    for holding in started:
        holding.kill()
        if holding.child:
            os.kill(holding.child, signal.SIGKILL)


def test_a_lock_of_another_process_is_seen_respected_and_given_back(hold, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "WAIT_SECONDS", 0.1)
    process = hold(tmp_path, 1)
    with pytest.raises(UserError, match=f"process {process.pid}"):
        RunLock(tmp_path, 1).acquire()
    (holder,) = run_lock.living(tmp_path)
    assert (holder.rank, holder.pid, holder.host) == (
        1,
        process.pid,
        socket.gethostname(),
    ) and holder.is_here
    assert json.loads((tmp_path / "ranks" / "rank-1").read_text())["command"] == " ".join(sys.argv)
    process.release()
    assert run_lock.living(tmp_path) == [] == run_lock.named(tmp_path)


def test_a_killed_holder_holds_nothing_and_is_replaced(hold, tmp_path):
    """Nor does a child that it forked, such as a data-loader worker."""
    process = hold(tmp_path, 0, forks=True)
    process.kill()
    assert run_lock.living(tmp_path) == [] and [each.pid for each in run_lock.named(tmp_path)] == [
        process.pid
    ]
    lock = RunLock(tmp_path, 0)
    lock.acquire()
    assert [holder.pid for holder in run_lock.living(tmp_path)] == [os.getpid()]
    lock.release()


def asked_by_another(output) -> list:
    """Numbers of the living, as another process sees them."""
    mine, theirs = FORK.Pipe()
    process = FORK.Process(
        target=lambda: theirs.send([holder.pid for holder in run_lock.living(output)])
    )
    process.start()
    found = mine.recv()
    process.join()
    return found


def test_looking_at_one_s_own_lock_does_not_lose_it(tmp_path):
    """Nor is it free for this process itself."""
    lock = RunLock(tmp_path, 0)
    lock.acquire()
    assert [holder.pid for holder in run_lock.living(tmp_path)] == [os.getpid()]
    lock.acquire()
    assert run_lock.refuse(tmp_path) and asked_by_another(tmp_path) == [os.getpid()]
    RunLock(tmp_path, 0).release()
    assert run_lock.living(tmp_path) == [] and asked_by_another(tmp_path) == []
    lock.release()


def test_a_half_written_file_is_a_rank_all_the_same(hold, tmp_path):
    hold(tmp_path, 0)
    (tmp_path / "ranks" / "rank-0").write_text('{"pid": 12')
    (holder,) = run_lock.living(tmp_path)
    assert (holder.rank, holder.pid) == (0, None) and run_lock.refuse(tmp_path)


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = RunLock(tmp_path, 0)
    with caplog.at_level(logging.WARNING):
        lock.acquire()
        assert not run_lock.living(tmp_path) and [
            each.pid for each in run_lock.named(tmp_path)
        ] == [os.getpid()]
        lock.release()
    assert caplog.text.count("has no locks") == 1


def test_a_folder_that_cannot_be_written_is_the_user_s(tmp_path):
    (tmp_path / "ranks").write_text("a file in its place")
    with pytest.raises(UserError, match="output_dir"):
        RunLock(tmp_path, 0).acquire()


class AsRank1:
    """Rank 0 is a process of another machine."""

    def first(self, own):
        return "node_rank 0 (far)", "far", 71


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_folder_that_is_not_shared_is_refused(is_shared, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(process_info, "current", lambda: ProcessInfo(1, 2, 0, 1, 1, 2, "near"))
    lock = RunLock(tmp_path, 0).path
    if is_shared:
        lock.parent.mkdir()
        lock.write_text('{"rank": 0, "pid": 71, "host": "far", "started": "", "command": ""}\n')
    found = run_lock.not_shared(tmp_path, AsRank1())
    assert [problem.field for problem in found] == (
        [] if is_shared else ["output_dir on node_rank 1 (near)"]
    )
