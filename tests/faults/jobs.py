"""Jobs of the small run: as a user launches them, or as forks of this process, which has the libraries loaded.

A launch is DeepSpeed's own: its runner, its launch.py, and a Python for every rank, which takes a quarter of a minute
to import what it needs. A fork becomes the launcher's ``main`` at once, with the same command line, engine, process
group and exit; for whatever is not about launching. This process must never train itself: a fork could not, then.
"""

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

import psutil

from tape_ds.training import run_folder
from tests.faults.runs import ROOT, Setting, arguments, last_step

WORKER = ROOT / "tests" / "faults" / "worker.py"
LAUNCH_SECONDS = 180
"""Longer than any job takes, on a busy machine as well."""
ORPHAN_SECONDS = 30
"""What the ranks of a job have to be gone within when one of them, or their launcher, was killed."""


class Job(Protocol):
    """What a launch and a forked job have in common."""

    @property
    def printed(self) -> str:
        """What it has printed so far, without colours."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""

    def wait(self, seconds: float = LAUNCH_SECONDS) -> int:
        """Its exit code."""


def _plain(log: Path) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))


class Launch:
    """A job that was started as a user starts it, in a session of its own to which all its processes belong.

    Args:
        command: the whole command line.
        log: file for what it prints.
        environment: variables beyond those of this process.
    """

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None):
        self.log = log
        inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        own = {
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env=inherited | own | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        """What it has printed so far, without colours."""
        return _plain(self.log)

    @property
    def ended(self) -> bool:
        """Whether what was started has ended; ranks may yet live."""
        return self.process.poll() is not None

    def members(self) -> list[psutil.Process]:
        """Every living process of the job, orphans and loader workers included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def launcher(self) -> psutil.Process | None:
        """DeepSpeed's launch.py, while it lives."""
        return next((each for each in self.members() if "deepspeed.launcher.launch" in _words(each)), None)

    def ranks(self) -> dict[int, psutil.Process]:
        """The ranks that live, by number; loader workers look alike and are their children."""
        found: dict[int, psutil.Process] = {}
        for process in sorted(self.members(), key=lambda each: each.pid):
            number = next((word for word in _words(process) if word.startswith("--local_rank=")), None)
            if number is not None:
                found.setdefault(int(number.partition("=")[2]), process)
        return found

    def wait(self, seconds: float = LAUNCH_SECONDS) -> int:
        """The exit code of what was started; everything is killed where it takes longer than ``seconds``.

        Raises:
            AssertionError: it took longer.
        """
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            stuck = [(each.pid, each.status()) for each in self.members()]
            self.kill()
            raise AssertionError(f"no end after {seconds:.0f} s: {stuck}\n{self.printed[-3000:]}") from None

    def gone(self, seconds: float = ORPHAN_SECONDS) -> float:
        """Wait until no process of the job lives; returns how long that took.

        Raises:
            AssertionError: some live after ``seconds``; they are killed.
        """
        begin = time.monotonic()
        self._reap()
        while living := self.members():
            if time.monotonic() - begin > seconds:
                names = [f"{each.pid} {' '.join(_words(each))[-160:]}" for each in living]
                self.kill()
                raise AssertionError(f"after {seconds:.0f} s these still lived: {names}\n{self.printed[-3000:]}")
            time.sleep(0.1)
            self._reap()
        return time.monotonic() - begin

    def _reap(self) -> None:
        self.process.poll()

    def kill(self) -> None:
        """``kill -9`` for everything that is left of it."""
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Forked:
    """A job whose ranks are forks of this process.

    Args:
        script: whose ``main`` they become.
        words: its command line.
        log: file for what they print.
        processes: ranks.
        environment: variables beyond those of this process.
    """

    def __init__(
        self,
        script: Path,
        words: Sequence[str],
        log: Path,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
    ):
        _load_libraries()
        self.log = log
        self.codes: dict[int, int] = {}
        """Exit codes of the ranks that have ended, by their process ids."""
        log.parent.mkdir(parents=True, exist_ok=True)
        job = {"WORLD_SIZE": str(processes), "LOCAL_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
        job |= {"MASTER_PORT": str(_free_port()), "HF_HUB_OFFLINE": "1", **(environment or {})}
        sys.stdout.flush()
        sys.stderr.flush()
        self.ranks: list[int] = []
        """Process ids."""
        with log.open("ab") as file:
            for rank in range(processes):
                child = os.fork()
                if child == 0:
                    _become(script, words, file.fileno(), job | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
                self.ranks.append(child)

    @property
    def printed(self) -> str:
        """What it has printed so far, without colours."""
        return _plain(self.log)

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended."""
        for pid in self.ranks:
            if pid not in self.codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self.codes) == len(self.ranks)

    def wait(self, seconds: float = LAUNCH_SECONDS) -> int:
        """The exit code of the job: 0 if that is every rank's, else that of the first one that failed; the others are
        then given :data:`ORPHAN_SECONDS` to end.

        Raises:
            AssertionError: it took longer than ``seconds``, or a rank outlived the failed one.
        """
        deadline, failed = time.monotonic() + seconds, 0
        while not self.ended:
            if not failed and (failed := next((code for code in self.codes.values() if code), 0)):
                deadline = min(deadline, time.monotonic() + ORPHAN_SECONDS)
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"exit codes {list(self.codes.values())}, then no end\n{self.printed[-3000:]}")
            time.sleep(0.02)
        return failed or next((code for code in self.codes.values() if code), 0)

    def kill(self) -> None:
        """``kill -9`` for every rank that is left, and its loader workers."""
        while not self.ended:
            for pid in self.ranks:
                if pid not in self.codes:
                    os.killpg(pid, signal.SIGKILL)
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _load_libraries() -> None:
    """What a launcher imports, so that no fork has to."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import tape_ds.training.execution
    import tape_ds.training.extension
    import tape_ds.training.merging
    import tape_ds.training.pretraining  # noqa: F401


def _become(script: Path, words: Sequence[str], output: int, environment: Mapping[str, str]) -> NoReturn:
    """Be a rank, until its end."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        os.environ |= environment
        os.environ.pop("TRITON_INTERPRET", None)
        sys.argv = [str(script), *words]
        os.chdir(ROOT)
        code = _main_of(script)() or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main_of(script: Path) -> Callable[[], int | None]:
    specification = importlib.util.spec_from_file_location(script.stem, script)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    main: Callable[[], int | None] = module.main
    return main


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def fork(
    workspace: Path,
    setting: Setting,
    output: Path,
    *,
    fault: Mapping[str, Any] | None = None,
    processes: int = 2,
    log: Path | None = None,
    **changed: Any,
) -> Forked:
    """:func:`start`, by forks."""
    script = WORKER if fault is not None else ROOT / setting.launcher
    words = arguments(workspace, setting, output, **changed)
    return Forked(script, words, log or _log_of(output), processes, _told(setting, fault))


def deepspeed(processes: int = 2) -> list[str]:
    """The words before the script: DeepSpeed's runner, on a port of its own."""
    runner = [sys.executable, "-m", "deepspeed.launcher.runner"]
    return [*runner, "--num_accelerators", str(processes), "--master_port", str(_free_port())]


def start(
    workspace: Path,
    setting: Setting,
    output: Path,
    *,
    fault: Mapping[str, Any] | None = None,
    processes: int = 2,
    before: Sequence[str] = (),
    log: Path | None = None,
    **changed: Any,
) -> Launch:
    """Start a run of ``setting`` on two processes.

    Args:
        workspace: with the material.
        setting: what is trained, and how.
        output: the run's folder; its log lies beside it.
        fault: what :mod:`.worker` does to it; without one the launcher is started itself.
        processes: ranks.
        before: words before DeepSpeed's own.
        log: where to write what it prints.
        changed: fields of the recipe.
    """
    script = WORKER if fault is not None else ROOT / setting.launcher
    command = [*before, *deepspeed(processes), script, *arguments(workspace, setting, output, **changed)]
    return Launch(command, log or _log_of(output), _told(setting, fault))


def _told(setting: Setting, fault: Mapping[str, Any] | None) -> dict[str, str]:
    """What the worker is told of its fault."""
    return {} if fault is None else {"FAULT": json.dumps({"launcher": str(ROOT / setting.launcher), **fault})}


def _log_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.log")


def reference(workspace: Path, setting: Setting, **changed: Any) -> Path:
    """The folder of a run of ``setting`` that nothing happened to, made once in a workspace.

    It ran under :mod:`.worker`, which counted what a save calls: ``calls-R.json`` of each rank.
    """
    name = "-".join([setting.name, *(f"{key}-{value}" for key, value in changed.items())])
    output = workspace / "references" / name
    if (output / run_folder.FINISHED).exists():
        return output
    counted = {"act": "count", "into": str(workspace / "references" / f"{name}.calls")}
    with fork(workspace, setting, output, fault=counted, start_anew="true", **changed) as job:
        code = job.wait()
        assert code == 0 and (output / run_folder.FINISHED).exists(), f"{code}: {job.printed[-4000:]}"
    return output


def calls(workspace: Path, setting: Setting) -> dict[int, dict[str, int]]:
    """How often each rank of the reference run called what can be made to fail, within its saves."""
    reference(workspace, setting)
    folder = workspace / "references" / f"{setting.name}.calls"
    return {rank: json.loads((folder / f"calls-{rank}.json").read_text()) for rank in (0, 1)}


def resume(workspace: Path, setting: Setting, output: Path, *, launched: bool) -> str:
    """Go on with a run by ``--resume auto``; returns what it printed.

    Args:
        workspace: with the material.
        setting: the run's.
        output: its folder.
        launched: by DeepSpeed's launcher, not by forks.

    Raises:
        AssertionError: it did not come to its end with exit code 0.
    """
    log = output.with_name(f"{output.name}.resumed.log")
    with (start if launched else fork)(workspace, setting, output, log=log, resume="auto") as job:
        code = job.wait()
        printed = job.printed
    assert code == 0, f"the resume ended with {code}\n{printed[-4000:]}"
    assert "Traceback" not in printed, printed[-4000:]
    return printed


def wait_for_step(job: Job, output: Path, step: int) -> None:
    """Until the run's metrics show this step, or it has ended."""
    deadline = time.monotonic() + LAUNCH_SECONDS
    while last_step(output) < step and not job.ended:
        assert time.monotonic() < deadline, f"step {step} did not come\n{job.printed[-3000:]}"
        time.sleep(0.01)
    assert not job.ended or run_folder.finished(output) is not None, f"it ended by itself\n{job.printed[-3000:]}"
