"""Jobs of several ranks: launched by DeepSpeed as a user does, or forked.

A launched rank is a new Python, which imports for a quarter of a minute. A forked rank becomes the script's ``main`` at
once, with the same command line, engine, process group and exit code: for tests that are not about launching. It is
forked from a server that has imported everything and computed nothing, since a process that has trained cannot fork.
"""

import contextlib
import functools
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NoReturn, Self
from unittest import mock

import psutil

ROOT = Path(__file__).resolve().parents[1]
LAUNCH_SECONDS = 180
"""Longer than any job takes, on a busy machine as well."""
ORPHAN_SECONDS = 30
"""What the ranks of a job have to be gone within when one of them, or their launcher, was killed."""
LIBRARIES = [
    f"tape_ds.training.{name}"
    for name in (
        "execution",
        "runs.extension",
        "runs.finetuning",
        "runs.generated",
        "runs.pretraining",
    )
]
LIBRARIES += ["tape_ds.checkpoint.merging"]
# which an engine imports when it starts
LIBRARIES += ["deepspeed.runtime.zero.muon.muon_optimizer"]
"""What the server imports, with all that these import."""


class _Logged:
    """A job that prints to a file, and is killed at the end of a block."""

    log: Path

    @property
    def printed(self) -> str:
        """What was printed so far, without colours."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def kill(self) -> None:
        """``kill -9`` for everything that is left of it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Launch(_Logged):
    """A job that was started as a user starts it, as a new session of processes."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ):
        """Start a command line that prints to ``log``, with ``environment`` added to this process's."""
        self.log = log
        own = {
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env=variables() | own | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether the launcher has ended; ranks may still live."""
        return self.process.poll() is not None

    def members(self) -> list[psutil.Process]:
        """Every living process of the job, orphans and loader workers included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if (
                    os.getsid(process.pid) == self.process.pid
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def launcher(self) -> psutil.Process | None:
        """DeepSpeed's launch.py, while it lives."""
        return next(
            (each for each in self.members() if "deepspeed.launcher.launch" in _words(each)), None
        )

    def ranks(self) -> dict[int, psutil.Process]:
        """The ranks that live, by number; loader workers look alike and are their children."""
        found: dict[int, psutil.Process] = {}
        for process in sorted(self.members(), key=lambda each: each.pid):
            number = next(
                (word for word in _words(process) if word.startswith("--local_rank=")), None
            )
            if number is not None:
                found.setdefault(int(number.partition("=")[2]), process)
        return found

    def wait(self, seconds: float = LAUNCH_SECONDS) -> int:
        """Return the launcher's exit code; after ``seconds`` kill everything and raise AssertionError."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            stuck = [(each.pid, each.status()) for each in self.members()]
            self.kill()
            raise AssertionError(
                f"no end after {seconds:.0f} s: {stuck}\n{self.printed[-3000:]}"
            ) from None

    def gone(self, seconds: float = ORPHAN_SECONDS) -> float:
        """Wait until no process of the job lives, and return how long that took; after ``seconds`` kill those that do
        and raise AssertionError."""
        begin = time.monotonic()
        self.process.poll()
        while living := self.members():
            if time.monotonic() - begin > seconds:
                names = [f"{each.pid} {' '.join(_words(each))[-160:]}" for each in living]
                self.kill()
                raise AssertionError(
                    f"after {seconds:.0f} s these still lived: {names}\n{self.printed[-3000:]}"
                )
            time.sleep(0.1)
            self.process.poll()
        return time.monotonic() - begin

    def kill(self) -> None:
        """``kill -9`` for everything that is left of it."""
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Forked(_Logged):
    """A job whose ranks are forked from the server and become the ``main`` of a script."""

    def __init__(
        self,
        script: Path,
        words: Sequence[str],
        log: Path,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
    ):
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        job = {
            "WORLD_SIZE": str(processes),
            "LOCAL_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
        }
        job |= {"MASTER_PORT": str(free_port()), "HF_HUB_OFFLINE": "1", **(environment or {})}
        environments = [
            variables() | job | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            for rank in range(processes)
        ]
        words = [str(word) for word in words]
        self._processes = [
            server().Process(target=_become, args=(script, words, log, own)) for own in environments
        ]
        for process in self._processes:
            process.start()

    @property
    def ranks(self) -> list[int]:
        """Process ids."""
        return [process.pid for process in self._processes]

    @property
    def codes(self) -> dict[int, int]:
        """Exit codes of the ranks that have ended, by their process ids."""
        return {
            process.pid: process.exitcode
            for process in self._processes
            if process.exitcode is not None
        }

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended."""
        return len(self.codes) == len(self._processes)

    def wait(self, seconds: float = LAUNCH_SECONDS) -> int:
        """Return 0 if that is every rank's exit code, else that of the first one that failed; the others then have
        ``ORPHAN_SECONDS`` to end. Raises AssertionError: it took longer."""
        deadline, failed = time.monotonic() + seconds, 0
        while not self.ended:
            if not failed and (failed := next((code for code in self.codes.values() if code), 0)):
                deadline = min(deadline, time.monotonic() + ORPHAN_SECONDS)
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(
                    f"exit codes {list(self.codes.values())}, then no end\n{self.printed[-3000:]}"
                )
            time.sleep(0.02)
        return failed or next((code for code in self.codes.values() if code), 0)

    def kill(self) -> None:
        """``kill -9`` for every rank that is left, and its loader workers."""
        while not self.ended:
            for pid in set(self.ranks) - set(self.codes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            time.sleep(0.01)


Job = Launch | Forked


def variables() -> dict[str, str]:
    """The environment of every job's processes."""
    # nor what a run within this process has set for its trackers
    left_out = (
        "TRITON_INTERPRET",
        "TENSORBOARD_LOGGING_DIR",
        "WANDB_DIR",
        "WANDB_RUN_ID",
        "WANDB_RESUME",
    )
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return inherited | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@functools.cache
def server() -> ForkServerContext:
    """A process that has imported everything and computed nothing, from which ranks are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with mock.patch.dict(os.environ, variables(), clear=True):
        multiprocessing.forkserver.ensure_running()
    return context


def set_environment(variables: Mapping[str, str]) -> None:
    """Have exactly these variables."""
    os.environ.clear()
    os.environ.update(variables)


def _become(
    script: Path, words: Sequence[str], log: Path, environment: Mapping[str, str]
) -> NoReturn:
    """Be a rank, until its end."""
    settle()
    code = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        set_environment(environment)
        sys.argv = [str(script), *words]
        os.chdir(ROOT)
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def settle() -> None:
    """Have a process of the server's behave as any rank."""
    gc.freeze()  # what was imported stays: an engine collects garbage again and again, a second each time
    multiprocessing.set_start_method("fork", force=True)  # the server's would be inherited


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def deepspeed(processes: int = 2) -> list[str]:
    """The words before the script: DeepSpeed's runner, on a free port."""
    runner = [sys.executable, "-m", "deepspeed.launcher.runner"]
    return [*runner, "--num_accelerators", str(processes), "--master_port", str(free_port())]
