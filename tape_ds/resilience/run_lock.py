"""Refuse a second job in a run's folder: every rank locks a file there for as long as it lives.

Two jobs that write into one folder destroy both runs; it happens when ranks outlive their launcher and the run is
resumed. The system releases a lock when its process ends, however it ends.
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
from typing import TYPE_CHECKING

from tape_ds import run_folder, storage
from tape_ds.distributed import process_info
from tape_ds.errors import Problem, UserError, redacted

if TYPE_CHECKING:
    from tape_ds.distributed.rank_sync import RankSync  # imports torch, which keep_alive does without

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
"""How long :meth:`RunLock.acquire` waits: :func:`living` locks a file for a moment to look at it."""

_LOOKS, _LOOK_SECONDS = 5, 0.4
"""How often :func:`not_shared` looks for another machine's file; NFS may show it late."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FILE = re.compile(r"rank-(\d+)")
_locked: dict[Path, int] = {}
"""Files that this process has locked -> their descriptors."""


def _close_in_child() -> None:
    """A fork (a data-loader worker) inherits the descriptors, and would keep the lock after its rank's end."""
    for descriptor in _locked.values():
        os.close(descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(frozen=True)
class Holder:
    """A rank that has a file in a run's folder."""

    rank: int
    pid: int | None
    """None: not written yet."""
    host: str
    started: str
    command: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        process = "a process that is just starting" if self.pid is None else f"process {self.pid}"
        return f"rank {self.rank}: {process} on {self.host or 'an unknown machine'}, since {self.started or 'now'}"


class RunLock:
    """The lock of one rank of this process, in the run's folder ``output``."""

    def __init__(self, output: Path, rank: int):
        self.output = output
        self.rank = rank
        self.path = (output / run_folder.RANKS / f"rank-{rank}").absolute()

    def acquire(self) -> None:
        """Lock it until :meth:`release` or the end of this process; again has no effect. On a file system without
        locks, log a warning and lock nothing.

        Raises:
            UserError: another process has it, or the folder cannot be written.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while self.path not in _locked:
            try:
                self._attempt()
            except (BlockingIOError, FileNotFoundError):  # not found: another job has just removed the folder
                if time.monotonic() > deadline:
                    wrong = f"another process has just become rank {self.rank} in it"
                    problem = Problem("output_dir", str(self.output), wrong, "start only one run in it")
                    raise UserError(refuse(self.output) or problem) from None
                time.sleep(0.05)
            except OSError as error:
                wrong, remedy = storage.explain(error, self.output), "make it writable, or name another folder"
                raise UserError(Problem("output_dir", str(self.output), wrong, remedy)) from error

    def _attempt(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _lock(descriptor, fcntl.LOCK_EX):
                logger.warning("this file system has no locks: a second run in %s would not be noticed", self.output)
            if not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                raise BlockingIOError(errno.EAGAIN, "its last holder has just removed it")
        except BaseException:
            os.close(descriptor)
            raise
        _locked[self.path] = descriptor
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        holder = Holder(self.rank, os.getpid(), socket.gethostname(), started, redacted(" ".join(sys.argv)))
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, (json.dumps(asdict(holder)) + "\n").encode(), 0)
        except OSError as error:  # a full disk; the lock itself needs no space
            logger.warning("%s: %s", self.path, storage.explain(error, self.output))

    def release(self) -> None:
        if (descriptor := _locked.pop(self.path, None)) is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(descriptor)


def living(output: Path) -> list[Holder]:
    """Return the ranks that have this folder locked, including this process's, by number."""
    return [holder for holder, is_locked in _read_holders(output) if is_locked]


def named(output: Path) -> list[Holder]:
    """Return the ranks that have a file in this folder, locked or not, by number: killed ones too, and those on a file
    system without locks."""
    return [holder for holder, _ in _read_holders(output)]


def refuse(output: Path, field: str = "output_dir") -> list[Problem]:
    """Return a problem that names every living rank in the folder; ``field`` is what names the folder."""
    holders = living(output)
    if not holders:
        return []
    wrong = f"another run is using this folder: {'; '.join(map(str, holders))}"
    pids: dict[str, list[str]] = {}
    for holder in holders:
        if holder.pid is not None:
            pids.setdefault(holder.host, []).append(str(holder.pid))
    kills = [
        f"`kill {' '.join(numbers)}`" + ("" if host == socket.gethostname() else f" on {host}")
        for host, numbers in pids.items()
    ]
    remedy = f"wait for its end, or stop it with {', '.join(kills)}; it commits a checkpoint and exits"
    return [Problem(field, str(output), wrong, remedy if kills else "wait for its end")]


def not_shared(output: Path, rank_sync: "RankSync") -> list[Problem]:
    """Check that this machine sees rank 0's file in the run's folder; called by all ranks, after rank 0 has it."""
    here = process_info.current()
    if here.is_single_node:
        return []
    machine, host, pid = rank_sync.first((here.machine, here.host, os.getpid()))
    for _ in range(_LOOKS):
        if any((holder.host, holder.pid) == (host, pid) for holder in named(output)):
            return []
        time.sleep(_LOOK_SECONDS)
    wrong = f"it is not the folder of {machine}: the file of rank 0 is not in it"
    remedy = "name a folder on a disk that all machines share: every rank writes its part of a checkpoint there"
    return [Problem(f"output_dir on {here.machine}", str(output), wrong, remedy)]


def _read_holders(output: Path) -> list[tuple[Holder, bool]]:
    """Return every rank's file, and whether a process has it locked."""
    try:
        paths = list((output / run_folder.RANKS).iterdir())
    except OSError:
        return []
    holders = []
    for rank, path in sorted((int(match[1]), path) for path in paths if (match := _FILE.fullmatch(path.name))):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # released meanwhile
            continue
        try:
            is_locked = False
            try:
                # shared, so that two processes can look at once; the `filelock` package has exclusive locks only
                _lock(descriptor, fcntl.LOCK_SH)
            except BlockingIOError:
                is_locked = True
            try:
                content = json.loads(os.pread(descriptor, 2**16, 0))
                holder = Holder(**{**content, "rank": rank})
            except (ValueError, TypeError):  # not written completely yet
                holder = Holder(rank, None, "", "", "")
            holders.append((holder, is_locked))
        finally:
            os.close(descriptor)
    return holders


def _lock(descriptor: int, kind: int) -> bool:
    """Lock without waiting; return False if the file system has no locks.

    Raises:
        BlockingIOError: another open file has it.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True
