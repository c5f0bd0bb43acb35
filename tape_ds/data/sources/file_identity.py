"""Identities of source files: each file is read once in a process, and once on a machine whose ranks share the work
(:mod:`tape_ds.distributed.shared_reading`).

What was read of a file is remembered with its size, its times and its place on the disk.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import UserError

SETTLED = 2 * 10**9
"""Nanoseconds after which a file may be remembered: one that is changed twice within a tick of a disk's clock, of 2
seconds at most, keeps its times."""

_Place = tuple[str | int, ...]
_known: dict[_Place, str] = {}
_dated: ContextVar[bool] = ContextVar("_dated", default=False)
_asked: ContextVar[list[Path] | None] = ContextVar("_asked", default=None)


def file_identity(path: Path) -> str:
    """Return the identity of a file's contents (:func:`tape_ds.storage.content_identity`), independent of its time."""
    asked = _asked.get()
    if asked is not None:
        asked.append(path)
        return ""
    status = path.stat()
    if _dated.get() and status.st_size > storage.HASHED_WHOLE:
        return f"{status.st_size}@{status.st_mtime_ns}"
    place = _place(path, status)
    if place in _known:
        return _known[place]
    is_settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED
    found = storage.content_identity(path)
    if is_settled:
        _known[place] = found
    return found


def asked_for(identify: Callable[[], Any]) -> set[Path]:
    """Return the files that ``identify`` asks the identity of, without reading them."""
    asked: list[Path] = []
    token = _asked.set(asked)
    try:
        with suppress(UserError, OSError):
            identify()
    finally:
        _asked.reset(token)
    return set(asked)


def read(paths: Iterable[Path]) -> Mapping[_Place, str]:
    """Read files; return what may be remembered of them, for :func:`learn` in another process of the machine."""
    found: dict[_Place, str] = {}
    for path in paths:
        try:
            place = _place(path, path.stat())
            file_identity(path)
        except OSError:
            continue
        if place in _known:
            found[place] = _known[place]
    return found


def learn(found: Mapping[_Place, str]) -> None:
    _known.update(found)


def _place(path: Path, status: os.stat_result) -> _Place:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (str(path), status.st_dev, status.st_ino, status.st_size, *times)


@contextmanager
def dated_identities() -> Iterator[None]:
    """Identify large files by size and modification time, as older checkpoints did."""
    token = _dated.set(True)
    try:
        yield
    finally:
        _dated.reset(token)
