"""A rank records why it should stop, and lives until it has committed, and so do its workers."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import psutil
import pytest

from tape_ds import run_folder
from tape_ds.resilience import stopping
from tape_ds.resilience.stopping import StopRequest

ROOT = Path(__file__).resolve().parents[2]
# A process that does not wait for all that the package imports.
LIGHT = f"""
import sys, types
sys.modules["tape_ds"] = types.ModuleType("tape_ds")
sys.modules["tape_ds"].__path__ = [{str(ROOT / "tape_ds")!r}]
"""


@pytest.fixture
def handlers():
    """Are put back after the test."""
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def request_here(handlers):
    """This process, listening."""
    request = StopRequest()
    request.listen()
    return request


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_is_the_reason_and_the_first_counts(number, request_here):
    assert request_here.reason is None
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert request_here.reason == signal.Signals(
        number
    ).name and not request_here.reason.startswith(stopping.LAUNCHER)


def test_a_second_ctrl_c_interrupts_but_not_the_same_one_again(request_here, monkeypatch):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)  # from the terminal, and from a launcher
    assert request_here.reason == "SIGINT"
    monkeypatch.setattr(stopping, "TWICE_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_nohup_ignores_stays_ignored(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = StopRequest()
    request.listen()
    os.kill(os.getpid(), signal.SIGHUP)
    assert request.reason is None


RUNNER, LAUNCH = ["python", "/v/bin/deepspeed"], ["python", "-u", "-m", "deepspeed.launcher.launch"]
KEEP_ALIVE = ["python", "launchers/keep_alive.py", "deepspeed", "--num_gpus", "2"]


@pytest.fixture
def above(monkeypatch):
    """Sets the command lines of this process's ancestors."""

    def put(*lines):
        chain = [mock.Mock(**{"cmdline.return_value": line}) for line in lines]
        monkeypatch.setattr(
            stopping.psutil, "Process", lambda: mock.Mock(**{"parents.return_value": chain})
        )

    return put


@pytest.mark.parametrize(
    ("line", "is_one", "gpus"),
    [
        (["python", "-m", "deepspeed.launcher.runner", "--num_gpus=4", "x.py"], True, "4"),
        (["python", "/v/bin/deepspeed", "--num_accelerators", "2", "x.py"], True, None),
        (
            ["python", "/v/bin/tape-ds", "keep-alive", "tape-ds", "extend", "--num_gpus", "2"],
            True,
            "2",
        ),
        (["/v/bin/torchrun", "x.py"], True, None),
        (["bash", "-c", "deepspeed x.py"], False, None),
        (["python", "-m", "my.deepspeed"], False, None),
        (
            [
                "/usr/bin/python3.11",
                "-X",
                "dev",
                "-u",
                "-m",
                "tape_ds",
                "extend",
                "--num_gpus",
                "8",
            ],
            True,
            "8",
        ),
        (["tmux", "new", "-s", "tape-ds"], False, None),
        (["python", "watch.py", "tape_ds"], False, None),
        (["python"], False, None),
    ],
)
def test_launchers_above_a_rank_and_what_was_asked_of_them(line, is_one, gpus, above):
    above(LAUNCH, line)
    assert len(stopping.launchers_above()) == 1 + is_one
    assert stopping.launcher_option("--num_gpus") == gpus


@pytest.mark.parametrize(
    ("variable", "chain", "missing"),
    [
        ("0", [LAUNCH, RUNNER], False),
        ("0", [LAUNCH], True),
        ("0", [[*LAUNCH, "--node_rank=1"], ["bash", "-c", "cd x; python"]], False),
        (None, [KEEP_ALIVE], False),
    ],
)
def test_a_launcher_that_died_while_libraries_loaded(variable, chain, missing, above, monkeypatch):
    """They load for seconds, and an orphan that looks only then sees no launcher at all."""
    monkeypatch.delenv("CROSS_RANK", raising=False)
    if variable is not None:
        monkeypatch.setenv("CROSS_RANK", variable)
    above(*chain)
    request = StopRequest()
    monkeypatch.setattr(stopping.threading.Thread, "start", lambda thread: None)
    stopping.watch_launcher(request)
    assert (request.reason is not None) is missing
    assert not missing or request.reason.startswith(stopping.LAUNCHER)


ORPHAN = """
import logging, os, time
logging.basicConfig(stream=sys.stderr)
from tape_ds.resilience import stopping
from tape_ds.resilience.stopping import StopRequest
request = StopRequest()
stopping.tolerate_lost_terminal()
stopping.tolerate_lost_terminal()
assert stopping.watch_launcher(request, poll=0.05) is not None
print("training", os.getpid(), flush=True)
until = time.monotonic() + 20
while request.reason is None and time.monotonic() < until:
    time.sleep(0.02)
for number in range(100):
    print("to nobody", "x" * 1000, flush=True)
    logging.warning("to nobody either")
sys.stdout.flush()
open(sys.argv[1], "w").write(str(request.reason))
os._exit(0)
"""
STANDS_BY = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def test_ranks_hear_of_their_launcher_s_death_and_outlive_its_terminal(tmp_path):
    """A runner that is killed leaves its ranks alive, their output a pipe without a reader."""
    (tmp_path / "deepspeed").write_text(STANDS_BY)
    runner = subprocess.Popen(
        [sys.executable, str(tmp_path / "deepspeed"), LIGHT + ORPHAN, str(tmp_path / "reason")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert runner.stdout is not None
    said = runner.stdout.readline().split()
    assert said[0] == "training", said
    rank = psutil.Process(int(said[1]))
    runner.stdout.close()
    runner.kill()  # a zombie until it is waited for: gone all the same
    psutil.wait_procs([rank], timeout=20)
    assert (tmp_path / "reason").read_text() == f"the launcher (process {runner.pid}) died"
    runner.wait()


LOADER = """
import os, signal, time
import torch
from torch.utils.data import DataLoader, Dataset
from tape_ds.resilience import stopping

class Sequences(Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        time.sleep(SECONDS if index > 8 else 0)
        return torch.full((1000,), index)

request = stopping.StopRequest()
request.listen()
loader = DataLoader(Sequences(), batch_size=2, num_workers=2, worker_init_fn=stopping.shield_worker)
sequences = iter(loader)
next(sequences), next(sequences)  # one of each worker
print("going", flush=True)
MORE
os._exit(0)
"""
ON = """
while request.reason is None:
    next(sequences)
for _ in range(20):
    next(sequences)
print("went on", request.reason, flush=True)
"""


@pytest.fixture
def started():
    """Starts a rank with two workers, in a new session, and waits until its loader is at work."""
    ranks = []

    def start(more, seconds=0.01):
        code = LOADER.replace("MORE", more).replace("SECONDS", str(seconds))
        rank = subprocess.Popen(
            [sys.executable, "-c", LIGHT + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        ranks.append(rank)
        assert rank.stdout is not None
        assert rank.stdout.readline() == "going\n"
        return rank

    yield start
    for rank in ranks:
        for number in of_session(rank.pid):
            os.kill(number, signal.SIGKILL)
        rank.wait()


def of_session(leader):
    """Living processes of a session."""
    found = []
    for number in psutil.pids():
        try:
            if (
                os.getsid(number) == leader
                and psutil.Process(number).status() != psutil.STATUS_ZOMBIE
            ):
                found.append(number)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def is_empty_within(leader, seconds):
    until = time.monotonic() + seconds
    while of_session(leader) and time.monotonic() < until:
        time.sleep(0.05)
    return not of_session(leader)


def test_workers_outlive_a_signal_to_the_whole_group(started):
    """KempnerForge #177: the workers died first, and their rank with them, before it could commit."""
    rank = started(ON)
    assert len(of_session(rank.pid)) == 3
    os.killpg(rank.pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(rank.pid, signal.SIGTERM)
    printed, _ = rank.communicate(timeout=60)
    assert printed == "went on SIGINT\n" and rank.returncode == 0
    assert is_empty_within(rank.pid, 60)


@pytest.mark.parametrize(
    "end", ["stopping.kill_children()", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_workers_end_with_their_rank(end, started):
    """Also in the middle of a sequence that takes long."""
    rank = started(end, seconds=3600)
    printed, _ = rank.communicate(timeout=60)
    assert printed == "" and is_empty_within(rank.pid, 60)


def test_a_thread_in_place_of_a_worker_is_not_shielded_and_children_are_killed(monkeypatch):
    """A thread of the rank would shield the rank itself."""
    stopping.shield_worker(3)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    stopping.kill_children()
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", ""),
        ("before_lr-2.5\n", "before_lr-2.5"),
        ("../elsewhere", ""),
    ],
)
def test_a_file_asks_for_a_checkpoint_by_name(text, asked, tmp_path, monkeypatch, caplog):
    path = tmp_path / run_folder.SAVE_NOW
    path.write_text(text)
    monkeypatch.setattr(stopping, "_WRITING_SECONDS", 3600)
    assert text or stopping.take_save_request(tmp_path) is None, "it may still be being written"
    os.utime(path, (0, 0))
    assert stopping.take_save_request(tmp_path) == asked
    assert ("is no name" in caplog.text) is bool(text and not asked)
    assert not path.exists() and stopping.take_save_request(tmp_path) is None
