"""Folders that are built once, by the first process that asks, and read by all others.

On one machine a file lock lets the first build and the rest wait. The lock only saves work: a folder is written aside
and renamed when it is complete, so that no reader ever sees half of one, and two machines that share a disk whose locks
do not reach across can at worst build the same thing twice. A full disk leaves nothing half-written.
"""

import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tape_ds import storage
from tape_ds.errors import DiskError, Problem, UserError, check_folder, disk_error, raise_if_any


def folder(
    cache_dir: str | Path,
    name: str,
    build: Callable[[Path], None],
    field: str = "data_cache",
    remedy: str = "or name another data_cache: nothing of it was kept, and what the cache holds already stays",
) -> Path:
    """Return the finished folder ``cache_dir/name``, built by the first process that asks.

    Args:
        cache_dir: made if it is not there; one that holds the folder need not be this user's to write.
        name: which everything that decides the contents decides.
        build: given the path of a folder that is not there yet; makes and fills it. Its parent is there, for this
            build alone, and goes with all else in it. What ``build`` raises is passed on, and nothing is kept.
        field: what names the cache, for messages.
        remedy: for a disk that is full or read-only.

    Raises:
        UserError: ``cache_dir`` is a file.
        DiskError: the folder has to be built, and the disk is full or read-only.
    """
    finished = Path(cache_dir) / name
    if finished.exists():
        return finished
    raise_if_any(check_folder(field, cache_dir))
    with disk(field, Path(cache_dir), remedy):
        finished.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(finished.with_name(f".{name}.lock")):
            if not finished.exists():
                _build(finished, build)
    return finished


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
    """Turn a refusal of the disk into a :class:`DiskError`."""
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
