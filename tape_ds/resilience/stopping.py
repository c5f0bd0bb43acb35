"""Why a rank should stop: a signal that it was sent, or a launcher that died and left its ranks alive.

A signal handler notes the reason and nothing else; the ranks agree at the end of a step, commit a checkpoint and leave
(:mod:`.saving`). Until then neither the signal nor what a launcher's death brings with it may do harm: data-loader
workers outlive a signal to the whole process group, and a terminal that is gone swallows what is written to it.

A person can also ask for a checkpoint alone, by a file ``save_now`` in the run's folder.
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

import psutil

from tape_ds import run_folder

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
"""Each asks a run to commit and stop: schedulers, Slurm's warning ahead, Ctrl-C, a terminal that was closed."""
TWICE_SECONDS = 1.0
"""Ctrl-C again counts as a second one after this long: one press reaches a rank from the terminal and, with some
launchers, from its launcher as well."""
LAUNCHER = "the launcher"
"""How the reason begins where no person asked."""

_LAUNCH = ("deepspeed.launcher.launch",)
RUNNER = ("deepspeed", "ds", "deepspeed.launcher.runner")
"""What DeepSpeed's runner is called on a command line."""
_LAUNCHERS = (*RUNNER, *_LAUNCH, "keep_alive.py", "keep-alive", "keep_alive", "torchrun", "torch.distributed.run")
_CONNECTION = re.compile(r"sshd(-session)?: \S+@notty\b")
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_STARTED_BY_LAUNCH = "CROSS_RANK"
"""A variable that DeepSpeed's launch.py, and no other launcher, sets for its ranks."""
_NAME = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9._-]{1,64}")
_WRITING_SECONDS = 0.2


class StopRequest:
    """Whether this process was asked to stop, and why; one for each process."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """The first reason that was given: a signal's name (``"SIGTERM"``), or words; None: go on."""
        self._interrupted: float | None = None

    def request(self, reason: str) -> None:
        """Ask for a stop; only the first reason counts. Any thread may."""
        self.reason = self.reason or reason

    def listen(self) -> None:
        """From now on take :data:`SIGNALS` as requests; only the main thread may.

        Launchers send one after the other, so repeats change nothing. But a second Ctrl-C is a person who wants out:
        it is a KeyboardInterrupt at once. SIGHUP stays ignored where it is (``nohup``).
        """
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self._interrupted is not None and now - self._interrupted > TWICE_SECONDS:
            signal.signal(number, signal.default_int_handler)
            raise KeyboardInterrupt
        if number == signal.SIGINT and self._interrupted is None:
            self._interrupted = now
        self.request(signal.Signals(number).name)


def was_asked(reason: str) -> bool:
    """Return whether a run that stopped for this ``reason`` was asked to."""
    return not reason.startswith(LAUNCHER)


def watch_launcher(request: StopRequest, poll: float = 1.0) -> threading.Thread | None:
    """Ask for a stop as soon as a launcher above this process is gone.

    DeepSpeed's runner leaves its ranks alive when it dies, and so does its launch.py when it is killed; they would
    train on unseen and hold their GPUs. On a machine that the runner reaches by ssh, the connection
    stands for it. Shells and schedulers above are not watched.

    Args:
        request: that is made.
        poll: seconds between two looks.

    Returns:
        The watching thread, a daemon; None: no launcher above, or one that is dead by now.
    """
    launchers = _launchers_above()
    if _one_is_missing(launchers):
        request.request(f"{LAUNCHER} died before training began")
        return None
    if not launchers:
        return None

    def watch() -> None:
        while not (dead := [process.pid for process in launchers if _is_gone(process)]):
            time.sleep(poll)
        request.request(f"{LAUNCHER} (process {dead[0]}) died")

    thread = threading.Thread(target=watch, name="watch_launcher", daemon=True)
    thread.start()
    return thread


def program(command_line: Sequence[str]) -> str:
    """Return what a command line runs: the script or module of a Python, the command of a ``tape-ds``, or a program."""
    parts = iter(command_line)
    run = next(parts, "")
    if _PYTHON.fullmatch(PurePath(run).name):
        for part in parts:
            if part in ("-X", "-W"):
                next(parts, None)
            elif part in ("-m", "-c") or not part.startswith("-"):
                run = next(parts, "") if part == "-m" else part
                break
    return next(parts, run) if PurePath(run).name in ("tape-ds", "tape_ds") else run


def _runs(command_line: Sequence[str], launchers: Iterable[str] = _LAUNCHERS) -> bool:
    """Return whether a command line runs one of these: by a program's name, as a module, or as that module's file."""
    run = program(command_line)
    module = ".".join(PurePath(run).with_suffix("").parts) if run.endswith(".py") else run
    return any(
        PurePath(run).name == name or module == name or ("." in name and module.endswith(f".{name}"))
        for name in launchers
    )


def _launchers_above() -> dict[psutil.Process, list[str]]:
    """Launchers among the ancestors of this process, with their command lines."""
    found: dict[psutil.Process, list[str]] = {}
    for process in psutil.Process().parents():
        try:
            line = process.cmdline()
        except psutil.Error:  # of another user, or just gone: seen below as missing
            continue
        # sshd's process for one command, above a launch.py whose runner is on another machine: it ends with the
        # connection, and what it has started does not
        is_remote = any(_runs(each, _LAUNCH) for each in found.values())
        is_remote = is_remote and not any(_runs(each, RUNNER) for each in found.values())
        if _runs(line) or (is_remote and _CONNECTION.match(" ".join(line))):
            found[process] = line
    return found


def runner_option(name: str) -> str | None:
    """Return what a person gave DeepSpeed's runner above this process for an option, as typed; None: nothing, or there
    is no runner on this machine."""
    for line in _launchers_above().values():
        if not _runs(line, RUNNER):
            continue
        for place, word in enumerate(line):
            option, equals, value = word.partition("=")
            if option == name:
                return value if equals else next(iter(line[place + 1 :]), "")
    return None


def _one_is_missing(above: dict[psutil.Process, list[str]]) -> bool:
    """Return whether a launcher must have been there and is not: it died while this process was importing libraries.

    On a single machine launch.py is always started by the runner, which gives it no number of its node; on several, it
    is the first of DeepSpeed's own processes there.
    """
    if _STARTED_BY_LAUNCH not in os.environ:
        return False
    launch = [line for line in above.values() if _runs(line, _LAUNCH)]
    if not launch:
        return True
    alone = not any(part.startswith("--node_rank") for part in launch[0])
    return alone and not any(_runs(line, RUNNER) for line in above.values())


def _is_gone(process: psutil.Process) -> bool:
    """Return whether a process ended, its parent may not have asked for its exit code yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


class TolerantStream:
    """A text stream that drops what cannot be written: its terminal or pipe is gone, or the disk of its file is full.

    Everything but writing is the stream's own.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, if that can be; returns the number of characters in either case."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """:meth:`write` of each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, if that can be."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tolerate_lost_terminal() -> None:
    """Let this process outlive its terminal: wrap ``sys.stdout`` and ``sys.stderr``, also where logging handlers hold
    them already. A second call changes nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, TolerantStream):
            continue
        tolerant = TolerantStream(stream)
        setattr(sys, name, tolerant)
        loggers = [logging.root, *logging.root.manager.loggerDict.values()]
        for handler in {handler for each in loggers for handler in getattr(each, "handlers", ())}:
            if getattr(handler, "stream", None) is stream:
                handler.stream = tolerant  # not setStream, which would flush the old one, and may fail at that


def shield_worker(worker_id: int, init: Callable[[int], None] | None = None) -> None:
    """Let a data-loader worker live through a signal that was meant for its rank; a ``worker_init_fn``.

    Signals often reach a whole process group or a whole tree: a worker that dies of one takes its rank down before
    that has committed. So a worker ends only when its rank is gone, or when its rank terminates it. (torch's own
    handler also knows a SIGTERM of its parent from others, but dies of the others.)

    Args:
        worker_id: given by torch.
        init: called with it afterwards.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:  # else a thread of the rank itself
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=_leave_with, args=(parent.pid, os.getppid()), daemon=True).start()
    if init is not None:
        init(worker_id)


def _leave_with(parent: int | None, above: int) -> None:
    """End this worker when ``parent`` asks for it, or when ``above``, its parent for the system, is another one."""
    while os.getppid() == above:
        received = signal.sigtimedwait(SIGNALS, 1.0)
        if received is not None and received.si_signo == signal.SIGTERM and received.si_pid == parent:
            break
    os._exit(0)


def kill_children() -> None:
    """Kill data-loader workers and whatever else ``multiprocessing`` started here; for a process about to end.

    From here on a child's end is no error: torch's handler would raise for each one that is killed.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    children = multiprocessing.active_children()
    for child in children:
        child.kill()
    for child in children:
        child.join()


_answered: dict[Path, int] = {}
"""Requests that could not be removed, by their file's time of change: they count once."""


def asked_to_save(output: Path) -> str | None:
    """Return the name of the checkpoint that a person asks for by ``<output>/save_now``; "" without a name, None: not
    asked.

    A file that is a fraction of a second old and empty may still be being written, and counts the next time.
    """
    path = output / run_folder.SAVE_NOW
    try:
        found = path.stat()
    except OSError:
        return None
    being_written = found.st_size == 0 and 0 <= time.time() - found.st_mtime < _WRITING_SECONDS
    if being_written or _answered.get(path) == found.st_mtime_ns:
        return None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(1024).strip()
    except OSError as error:
        logger.warning("%s cannot be read (%s): saved without a name", path, error.strerror)
        return ""
    if text and not _NAME.fullmatch(text):
        logger.warning("%s: %r is no name (letters, digits, . _ -, 64 at most): saved without one", path, text[:64])
        return ""
    return text


def answered(output: Path) -> None:
    """Take the request away: it was carried out, or refused for good."""
    path = output / run_folder.SAVE_NOW
    try:
        _answered[path] = path.stat().st_mtime_ns
        path.unlink()
        del _answered[path]
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("%s cannot be removed (%s); it counts once", path, error.strerror)
