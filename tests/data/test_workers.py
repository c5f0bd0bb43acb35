"""Tasks in several processes: what they tell, how they fail, and that none is left behind.

Started by fork, which takes no time; the spawned processes of real use are tested through ``tools/prepare_data.py``.
"""

import multiprocessing
import os
import signal
import time
from functools import partial

import pytest

from tape_ds.data import workers
from tape_ds.errors import Problem, UserError


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    monkeypatch.setattr(workers, "_START", "fork")


def tell_pid(task, tell):
    tell((task, os.getpid()))
    time.sleep(0.05)


def fail_on_three(task, tell):
    if task == 3:
        raise UserError(Problem("data", task, "bad line", "mend it"))
    tell(os.getpid())
    time.sleep(60)


def tell_environment(task, tell):
    tell((os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"]))


def kill_itself(task, tell):
    os.kill(os.getpid(), signal.SIGKILL)


def alive(process):
    """Whether a process runs; one that nobody waited for yet does not."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(processes):
    """Whether all of them leave within some seconds."""
    for _ in range(100):
        if not any(map(alive, processes)):
            return True
        time.sleep(0.1)
    return False


def test_one_worker_is_this_process():
    told = []
    workers.run(tell_pid, [1, 2], 1, told.append)
    assert told == [(1, os.getpid()), (2, os.getpid())]


def test_every_task_is_done_once_and_told_here():
    told = []
    workers.run(tell_pid, list(range(20)), 3, told.append)
    assert sorted(task for task, _ in told) == list(range(20))
    processes = {process for _, process in told}
    assert len(processes) == 3
    assert os.getpid() not in processes
    assert gone(processes)


@pytest.mark.parametrize(("count", "expected"), [(1, ("8", "true")), (3, ("2", "true")), (8, ("1", "false"))])
def test_workers_without_a_task_become_threads_of_the_tokenizer(count, expected):
    told = []
    workers.run(tell_environment, list(range(count)), 8, told.append)
    assert told == [expected] * count


def test_nothing_to_do():
    workers.run(tell_pid, [], 4, pytest.fail)


def test_a_failure_stops_the_others_at_once():
    told = []
    started = time.monotonic()
    with pytest.raises(UserError, match="bad line") as caught:
        workers.run(fail_on_three, [1, 2, 3], 3, told.append)
    assert caught.value.problems[0].value == 3
    assert time.monotonic() - started < 30, "tasks 1 and 2 take 60 seconds"
    assert gone(told)


def test_a_killed_process_is_reported_with_a_remedy():
    with pytest.raises(UserError, match="memory runs out") as caught:
        workers.run(kill_itself, [1, 2], 2, print)
    assert caught.value.problems[0].field == "workers"


def _parent(pipe):
    workers.run(fail_on_three, [1, 2], 2, pipe.send)


def test_processes_leave_when_their_parent_is_killed():
    """Those that waited for a task stayed for ever, and those at work could write beside a preparation begun anew."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=partial(_parent, theirs))
    parent.start()
    processes = [ours.recv() for _ in range(2)]
    parent.kill()
    parent.join()
    assert gone(processes)
