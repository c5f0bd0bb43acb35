"""Folders that are built once and read from then on, whoever asks first and however many ask at once.

A folder's name is a hash of everything that decides its contents. On one machine a file lock lets the first build and
the rest wait. The lock only saves work: a folder is written aside and renamed when it is complete, so that no reader
ever sees half of one, and two machines that share a disk whose locks do not reach across can at worst build the same
thing twice.

A disk that is full leaves the cache as it was, and a cache that may only be read serves what it holds.
"""

import glob
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.data.bad_rows import SourceBadRows
from tape_ds.data.sources.base import dated_identities
from tape_ds.errors import DiskError, Problem, UserError, check_folder, disk_error, raise_if_any


def key(kind: str, **parts: Any) -> str:
    """Return a folder's name, ``kind-HASH``: equal for equal ``parts`` (anything JSON can hold), in every process."""
    described = json.dumps(parts, sort_keys=True)
    return f"{kind}-{hashlib.sha256(described.encode()).hexdigest()[:32]}"


def known(cache_dir: str | Path, name: Callable[[], str]) -> str:
    """Return ``name()``, of :func:`key`; the one that an older version gave the folder, where only that is there."""
    now = name()
    if (Path(cache_dir) / now).exists():
        return now
    with dated_identities():
        before = name()
    return before if (Path(cache_dir) / before).exists() else now


def folder(cache_dir: str | Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return the finished folder ``cache_dir/name``, built by whoever comes first.

    Args:
        cache_dir: made if it is not there; one that holds the folder need not be this user's to write.
        name: of :func:`key`.
        build: given the path of a folder that is not there yet; makes and fills it. Its parent is there, for this
            build alone, and goes with all else in it. What ``build`` raises is passed on, and nothing is kept.

    Raises:
        UserError: ``cache_dir`` is a file.
        DiskError: the folder has to be built, and the disk is full or read-only.
    """
    from filelock import FileLock

    finished = Path(cache_dir) / name
    if finished.exists():
        return finished
    raise_if_any(check_folder("data_cache", cache_dir))
    remedy = "or name another data_cache: nothing of it was kept, and what the cache holds already stays"
    with disk("data_cache", Path(cache_dir), remedy):
        finished.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(finished.with_name(f"{name}.lock")):
            if not finished.exists():
                _build(finished, build)
    return finished


def folder_with_record(
    bad_rows: SourceBadRows, cache_dir: str | Path, name: str, build: Callable[[Path], None]
) -> Path:
    """As :func:`folder`, with a record of the rows that ``build`` leaves out, which count for every run that reads it.

    Raises:
        UserError: with these there are more than the run's limit.
    """

    def build_with_record(folder: Path) -> None:
        build(folder)
        bad_rows.write(folder / bad_rows.FILE)

    found = folder(cache_dir, name, build_with_record)
    bad_rows.count(found / bad_rows.FILE)
    return found


def build_aside(finished: Path, build: Callable[[Path], None], field: str = "output") -> None:
    """Build elsewhere, then rename; for a folder that somebody named, so that two builds of it are not the same.

    Args:
        finished: the folder's name; its parents are made.
        build: as for :func:`folder`.
        field: what names the folder on the command line.

    Raises:
        UserError: another process builds it at the same time, or has done so since it was found missing.
        DiskError: the disk is full or read-only; nothing is left of the folder.
    """
    from filelock import FileLock, Timeout

    remedy = "name a new folder"
    with disk(field, finished):
        finished.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(finished.with_name(f".{finished.name}.lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(Problem(field, str(finished), "another process is writing it", remedy)) from error
        try:
            if finished.exists() or not _build(finished, build):
                raise UserError(Problem(field, str(finished), "another process wrote it meanwhile", remedy))
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


@contextmanager
def disk(field: str, folder: Path, remedy: str | None = None) -> Iterator[None]:
    """What the disk refuses becomes a :class:`DiskError`."""
    try:
        yield
    except Exception as error:
        refused = disk_error(error, field, folder, remedy)
        if refused is None or isinstance(error, DiskError):
            raise
        raise refused from error


def _build(finished: Path, build: Callable[[Path], None]) -> bool:
    """Return whether the folder is the one that was built here: another machine may be faster."""
    here = f"{finished.name}.building-{socket.gethostname()}-"
    for left_over in finished.parent.glob(f"{glob.escape(here)}*"):  # of a build that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=here, dir=finished.parent))
    try:
        build(aside / "done")
        for path in (*(aside / "done").rglob("*"), aside / "done"):
            storage.sync(path)
        is_ours = _rename(aside / "done", finished)
        storage.sync(finished.parent)
        return is_ours
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _rename(done: Path, finished: Path) -> bool:
    """Give a complete folder its name; False where another machine was faster."""
    try:
        os.rename(done, finished)
    except OSError:
        if not finished.is_dir():
            raise
        return False
    return True
