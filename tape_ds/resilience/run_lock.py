"""Refuse a second run in a run's folder: every rank locks a file there for as long as it lives.

Two runs that write into one folder destroy each other; it happens when ranks outlive their launcher and the run is
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tape_ds import run_folder, storage
from tape_ds.distributed import process_info
from tape_ds.errors import Problem, UserError, redacted

if TYPE_CHECKING:
    # imports torch, which keep_alive does without
    from tape_ds.distributed.rank_sync import RankSync

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
"""How long :meth:`RunLock.acquire` waits: :func:`named` locks a file for a moment to look at it."""

_LOOKS = 5
_LOOK_SECONDS = 0.4
"""How often :func:`not_shared` looks for another machine's file; NFS may show it late."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FILE = re.compile(r"rank-(\d+)")
_locked: dict[Path, int] = {}
"""Files that this process has locked -> their descriptors."""


def _close_in_child() -> None:
    # a fork (a data-loader worker) inherits the descriptors, and would keep the lock after its rank's end
    for descriptor in _locked.values():
        os.close(descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(frozen=True)
class Holder:
    """A rank that has a file in a run's folder."""

    rank: int
    pid: int | None = None
    """None: not written yet."""
    host: str = ""
    started: str = ""
    is_locked: bool = True

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        if self.pid is None:
            process = "a process that is just starting"
        else:
            process = f"process {self.pid}"
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
            except (BlockingIOError, FileNotFoundError):
                # not found: another job has just removed the folder
                if time.monotonic() > deadline:
                    wrong = f"another process has just become rank {self.rank} in it"
                    problem = Problem(
                        "output_dir", str(self.output), wrong, "start only one run in it"
                    )
                    raise UserError(refuse(self.output) or problem) from None
                time.sleep(0.05)
            except OSError as error:
                wrong = storage.explain(error, self.output)
                remedy = "make it writable, or name another folder"
                raise UserError(Problem("output_dir", str(self.output), wrong, remedy)) from error

    def _attempt(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                logger.warning(
                    "this file system has no locks: a second run in %s would not be noticed",
                    self.output,
                )
            if not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                raise BlockingIOError(errno.EAGAIN, "its last holder has just removed it")
        except BaseException:
            os.close(descriptor)
            raise
        _locked[self.path] = descriptor
        holder = {"rank": self.rank, "pid": os.getpid(), "host": socket.gethostname()}
        holder |= {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": redacted(" ".join(sys.argv)),
        }
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)
        except OSError as error:
            # a full disk; the lock itself needs no space
            logger.warning("%s: %s", self.path, storage.explain(error, self.output))

    def release(self) -> None:
        if (descriptor := _locked.pop(self.path, None)) is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(descriptor)


def named(output: Path) -> list[Holder]:
    """Return the ranks that have a file in this folder, locked or not, by number: killed ones too, and those on a file
    system without locks."""
    files = []
    with contextlib.suppress(OSError):
        for match in map(_FILE.fullmatch, os.listdir(output / run_folder.RANKS)):
            if match:
                files.append((int(match[1]), match[0]))
    holders = []
    for rank, name in sorted(files):
        try:
            descriptor = os.open(output / run_folder.RANKS / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # released meanwhile
            continue
        is_locked = False
        try:
            # shared, so that two processes can look at once; the `filelock` package has exclusive locks only
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            is_locked = error.errno not in _NO_LOCKS
        try:
            content = json.loads(os.pread(descriptor, 2**16, 0))
            holder = Holder(
                rank, int(content["pid"]), content["host"], content["started"], is_locked
            )
        except (ValueError, TypeError, KeyError):
            # not written completely yet
            holder = Holder(rank, is_locked=is_locked)
        os.close(descriptor)
        holders.append(holder)
    return holders


def living(output: Path) -> list[Holder]:
    """Return the ranks that have this folder locked, including this process's, by number."""
    return [holder for holder in named(output) if holder.is_locked]


def refuse(output: Path, *, others_only: bool = False) -> list[Problem]:
    """Return a problem that names every living rank in the folder; ``others_only``: where one is not this process."""
    holders = living(output)
    if others_only and all(holder.is_here and holder.pid == os.getpid() for holder in holders):
        return []
    if not holders:
        return []
    wrong = f"another run is using this folder: {'; '.join(map(str, holders))}"
    commands: dict[str, str] = {}
    for holder in holders:
        if holder.pid is not None:
            commands[holder.host] = f"{commands.get(holder.host, 'kill')} {holder.pid}"
    kills = []
    for host, command in commands.items():
        kills.append(f"`{command}`")
        if host != socket.gethostname():
            kills[-1] += f" on {host}"
    remedy = (
        f"wait for its end, or stop it with {', '.join(kills)}; it commits a checkpoint and exits"
    )
    return [Problem("output_dir", str(output), wrong, remedy if kills else "wait for its end")]


def not_shared(output: Path, rank_sync: "RankSync") -> list[Problem]:
    """Check that this machine sees rank 0's file in the run's folder; called by all ranks, after rank 0 has it."""
    here = process_info.current()
    if here.is_single_node:
        return []
    # by host and process, since an older run's file may have the same name
    machine, host, pid = rank_sync.first((here.machine, here.host, os.getpid()))
    for _ in range(_LOOKS):
        if any((holder.host, holder.pid) == (host, pid) for holder in named(output)):
            return []
        time.sleep(_LOOK_SECONDS)
    wrong = f"it is not the folder of {machine}: the file of rank 0 is not in it"
    remedy = "name a folder on a disk that all machines share: every rank writes its part of a checkpoint there"
    return [Problem(f"output_dir on {here.machine}", str(output), wrong, remedy)]
