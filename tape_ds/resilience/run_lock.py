"""Who trains into a run's folder right now: every rank locks a file of its own there as long as it lives.

Two jobs that write into one folder destroy both runs; it happens when ranks outlive their launcher and a person
resumes. The system gives a lock back when its process ends, however it ends, so that nothing has to be cleared up by
hand. ``flock`` itself and not the ``filelock`` package, which has no shared lock to look at another one with.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tape_ds import run_folder, storage
from tape_ds.errors import Problem, UserError, redacted

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""How long :meth:`RunLock.acquire` waits for a lock that may be a look of :func:`living` at the file."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FILE = re.compile(r"rank-(\d+)")
_held: dict[Path, int] = {}
"""Files that this process has locked -> their open descriptors."""


def _forget_in_child() -> None:
    """A fork, a data-loader worker, shares its rank's open files: it would keep the lock behind the rank's end."""
    for file in _held.values():
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@dataclass(frozen=True)
class Holder:
    """A rank that lives in a run's folder, as its file names it."""

    rank: int
    pid: int | None
    """None: it had not written it yet."""
    host: str
    started: str
    command: str

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        process = "a process that is just starting" if self.pid is None else f"process {self.pid}"
        return f"rank {self.rank}: {process} on {self.host or 'an unknown machine'}, since {self.started or 'now'}"


class RunLock:
    """One rank's lock. The process has it, not the object: it stays when the object goes, and another object of the
    same folder and rank gives it back.

    Args:
        output: the run's folder.
        rank: this process's.
    """

    def __init__(self, output: Path, rank: int):
        self.output = output
        self.rank = rank
        self.path = (output / run_folder.RANKS / f"rank-{rank}").absolute()

    def acquire(self) -> None:
        """Lock it until :meth:`release` or the end of this process; what it has already it keeps. On a file system
        without locks it is said, once, and nothing is locked.

        Raises:
            UserError: another process has it, or the folder cannot be written.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.path not in _held:
            try:
                self._attempt()
            except (BlockingIOError, FileNotFoundError):  # not there: a job that ended has just cleared it away
                if time.monotonic() > deadline:
                    wrong = f"another process took the place of rank {self.rank} in it just now"
                    problem = Problem("output_dir", str(self.output), wrong, "start it once only")
                    raise UserError(refuse(self.output) or problem) from None
                time.sleep(0.05)
            except OSError as error:
                wrong, remedy = storage.explain(error, self.output), "make it writable, or name another folder"
                raise UserError(Problem("output_dir", str(self.output), wrong, remedy)) from error

    def _attempt(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(file, fcntl.LOCK_EX)
            if not os.path.samestat(os.fstat(file), self.path.stat()):
                raise BlockingIOError(errno.EAGAIN, "its former holder has just removed it")
        except BaseException:
            os.close(file)
            raise
        _held[self.path] = file
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        holder = Holder(self.rank, os.getpid(), socket.gethostname(), started, redacted(" ".join(sys.argv)))
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, (json.dumps(asdict(holder)) + "\n").encode(), 0)
        except OSError as error:  # the lock is what counts
            logger.warning("%s: %s", self.path, storage.explain(error, self.output))

    def release(self) -> None:
        """Give it back and take its file away; where this process does not have it, nothing happens."""
        if (file := _held.pop(self.path, None)) is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(file)


def living(output: Path) -> list[Holder]:
    """Return the ranks that have this folder locked, by number; those of this process among them."""
    return [holder for holder, is_locked in _look(output) if is_locked]


def named(output: Path) -> list[Holder]:
    """Return the ranks that have a file in this folder, by number, locked or not: those that were killed as well, and
    those of a file system without locks."""
    return [holder for holder, _ in _look(output)]


def refuse(output: Path, field: str = "output_dir") -> list[Problem]:
    """Return a problem that names the process of every rank living in this folder; none where none does.

    Args:
        output: the run's folder.
        field: what names it.
    """
    holders = living(output)
    if not holders:
        return []
    wrong = f"a run lives in it: {'; '.join(map(str, holders))}"
    hosts = dict.fromkeys(holder.host for holder in holders if holder.pid is not None)
    kills = [
        f"`kill {' '.join(str(holder.pid) for holder in holders if holder.host == host and holder.pid is not None)}`"
        + ("" if host == socket.gethostname() else f" on {host}")
        for host in hosts
    ]
    remedy = f"wait for its end, or ask it to stop: {', '.join(kills)}; it commits a checkpoint and exits"
    return [Problem(field, str(output), wrong, remedy if kills else "wait for its end")]


def _look(output: Path) -> list[tuple[Holder, bool]]:
    """Return every rank's file, and whether a process has it locked."""
    try:
        paths = list((output / run_folder.RANKS).iterdir())
    except OSError:
        return []
    found = []
    for rank, path in sorted((int(match[1]), path) for path in paths if (match := _FILE.fullmatch(path.name))):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # released meanwhile
            continue
        try:
            is_locked = False
            try:
                _lock(file, fcntl.LOCK_SH)  # shared: two looks do not stand in each other's way
            except BlockingIOError:
                is_locked = True
            try:
                own = json.loads(os.pread(file, 2**16, 0))
                holder = Holder(rank, int(own["pid"]), str(own["host"]), str(own["started"]), str(own["command"]))
            except (ValueError, KeyError, TypeError):  # not yet whole
                holder = Holder(rank, None, "", "", "")
            found.append((holder, is_locked))
        finally:
            os.close(file)
    return found


_warned = False


def _lock(file: int, kind: int) -> None:
    """``flock`` without waiting; where the file system knows no locks, that is said once and the file is free.

    Raises:
        BlockingIOError: another open file has it.
    """
    global _warned
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if not _warned:
            _warned = True
            logger.warning("this file system knows no locks: nothing keeps two jobs from training into one folder")
