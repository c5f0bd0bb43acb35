"""Reasons for a rank to stop: a signal, or a launcher that died and left its ranks alive.

A signal handler only records the reason; the ranks agree at the end of a step, commit a checkpoint and exit
(:mod:`tape_ds.training.trainer`). Until then neither the signal nor a lost terminal may end them: data-loader workers
survive a signal to the whole process group, and output that cannot be written is dropped.
"""

import contextlib
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from tape_ds import run_folder

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
"""Each asks a run to commit and stop: schedulers, Slurm's early warning, Ctrl-C, a closed terminal."""
TWICE_SECONDS = 1.0
"""A second Ctrl-C counts after this long: one press reaches a rank from the terminal, and from some launchers too."""
LAUNCHER = "the launcher"
"""First words of the reason if no person asked."""

_STARTED_BY_LAUNCH = "CROSS_RANK"
"""A variable that only DeepSpeed's launch.py sets for its ranks."""
_LAUNCHER = re.compile(
    r"(.*/)?(deepspeed|torchrun|tape-ds|keep_alive\.py|deepspeed/launcher/(launch|runner)\.py)"
    r"|deepspeed\.launcher\.(launch|runner)|torch\.distributed\.run|launchers\.keep_alive|tape_ds"
)
"""A launcher's program or module."""
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_WITH_VALUE = ("-W", "-X")
"""Options of Python whose value is the next word."""
_NAME = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9._-]{1,64}")
_WRITING_SECONDS = 0.2


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """Raised on all ranks together when a run ends before its last step because it was asked to; ``lost``: a disk kept
    the checkpoint of these steps from being committed."""

    def __init__(self, step: int, reason: str, *, lost: bool = False):
        super().__init__(f"stopped at step {step}: {reason}")
        self.step = step
        self.reason = reason
        self.lost = lost


@dataclass
class StopRequest:
    """Whether this process was asked to stop, and why."""

    reason: str | None = None
    """The first reason: a signal's name (``"SIGTERM"``) or words; None: continue."""
    _interrupted: float | None = None

    def request(self, reason: str) -> None:
        """Ask for a stop, from any thread; only the first reason counts."""
        self.reason = self.reason or reason

    def listen(self) -> None:
        """Take :data:`SIGNALS` as requests from now on; main thread only.

        Launchers send several, so repeats change nothing. But a second Ctrl-C is a person who is out of patience: it
        raises KeyboardInterrupt. SIGHUP stays ignored under ``nohup``.
        """
        for number in SIGNALS:
            if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            now = time.monotonic()
            if self._interrupted is not None and now - self._interrupted > TWICE_SECONDS:
                signal.signal(number, signal.default_int_handler)
                raise KeyboardInterrupt
            self._interrupted = self._interrupted or now
        self.request(signal.Signals(number).name)


def watch_launcher(request: StopRequest, poll: float = 1.0) -> threading.Thread | None:
    """Ask for a stop as soon as a launcher of this process is gone.

    DeepSpeed's runner leaves its ranks alive when it dies, and so does its launch.py when it is killed: they would keep
    training, unseen, and hold their GPUs. Returns the watching thread, if there is a living launcher.
    """
    launchers = launchers_above()
    if _STARTED_BY_LAUNCH in os.environ:
        # launch.py, or the runner above it, may have died while this process imported its libraries. Only over ssh,
        # where launch.py gets --node_rank, is there no runner on this machine
        by_runner = bool(launchers) and not any(
            word.startswith("--node_rank") for word in _command_line(launchers[0])
        )
        if len(launchers) < 1 + by_runner:
            request.request(f"{LAUNCHER} died before training began")
            return None
    if not launchers:
        return None

    def watch() -> None:
        while True:
            for process in launchers:
                try:
                    gone = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
                except psutil.Error as error:
                    gone = isinstance(error, psutil.NoSuchProcess)
                if gone:
                    return request.request(f"{LAUNCHER} (process {process.pid}) died")
            time.sleep(poll)

    thread = threading.Thread(target=watch, name="watch_launcher", daemon=True)
    thread.start()
    return thread


def launchers_above() -> list[psutil.Process]:
    """Return this process's launchers, nearest first.

    launch.py, DeepSpeed's runner and keep_alive are directly above each other; shells, terminals and schedulers above
    them may end while the run continues.
    """
    found = []
    for process in psutil.Process().parents():
        program = _program(_command_line(process))
        if program is None or not _LAUNCHER.fullmatch(program):
            break
        found.append(process)
    return found


def launcher_option(name: str) -> str | None:
    """Return the value of an option (``"--num_gpus"``) on a launcher's command line, as typed; None: not given."""
    for process in launchers_above():
        words = _command_line(process)
        for word, following in zip(words, [*words[1:], ""], strict=True):
            option, equals, value = word.partition("=")
            if option == name:
                if equals:
                    return value
                return following
    return None


def _program(words: list[str]) -> str | None:
    """Return what a command line runs: its first word, or Python's script or module; None for Python's code.

    Later words are arguments, and say nothing: ``tmux new -s tape-ds`` is no launcher.
    """
    if not words or not _PYTHON.fullmatch(words[0]):
        if words:
            return words[0]
        return None
    rest = iter(words[1:])
    for word in rest:
        if word == "-c":
            return None
        if word == "-m":
            return next(rest, None)
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class TolerantStream:
    """A text stream that drops what cannot be written: the terminal is gone, or the disk of its file is full."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tolerate_lost_terminal() -> None:
    """Let this process survive the loss of its terminal, or of the disk that its output goes to."""
    # else a handler prints a traceback for every line that it cannot write
    logging.raiseExceptions = False
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TolerantStream):
            setattr(sys, name, TolerantStream(stream))


def shield_worker(worker_id: int, init: Callable[[int], None] | None = None) -> None:
    """Let a data-loader worker survive a signal that was meant for its rank; a ``worker_init_fn``.

    Signals often reach a whole process group: a worker that dies of one ends its rank before the rank has committed. So
    a worker ends only when its rank has ended, or when its rank terminates it. ``init`` is called afterwards.
    """
    rank = multiprocessing.parent_process()
    parent = os.getppid()
    # None: a thread of the rank itself
    if rank is not None:

        def exit_with_rank() -> None:
            while os.getppid() == parent:
                received = signal.sigtimedwait(SIGNALS, 1.0)
                if (
                    received is not None
                    and received.si_signo == signal.SIGTERM
                    and received.si_pid == rank.pid
                ):
                    break
            os._exit(0)

        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=exit_with_rank, daemon=True).start()
    if init is not None:
        init(worker_id)


def kill_children() -> None:
    """Kill data-loader workers and other ``multiprocessing`` children; for a process about to end."""
    if threading.current_thread() is threading.main_thread():
        # torch's handler would raise for each killed worker
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    children = multiprocessing.active_children()
    for child in children:
        child.kill()
    for child in children:
        child.join()


def take_save_request(output: Path) -> str | None:
    """Return the checkpoint name that a person wrote into ``<output>/save_now``, and remove the file; "" without a
    name, None: not asked."""
    path = output / run_folder.SAVE_NOW
    try:
        status = path.stat()
        if status.st_size == 0 and 0 <= time.time() - status.st_mtime < _WRITING_SECONDS:
            # perhaps still being written
            return None
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning(
            "%s cannot be read and removed (%s): nothing is saved for it", path, error.strerror
        )
        return None
    if text and not _NAME.fullmatch(text):
        logger.warning(
            "%s: %r is no name (letters, digits, . _ -, 64 at most): saved without one",
            path,
            text[:64],
        )
        return ""
    return text
