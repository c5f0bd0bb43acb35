"""Build a folder once, by the first process that needs it.

A file lock lets the other processes wait. It only saves work: the folder is built under another name and renamed when
it is complete, so that two machines whose locks do not reach each other at worst build it twice.
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
    remedy: str = "or name another data_cache; finished folders of this one stay",
) -> Path:
    """Return the finished folder ``cache_dir/name``; build it if it does not exist.

    Args:
        cache_dir: created if necessary; may be read-only if it has the folder.
        name: derived from everything that determines the contents.
        build: creates and fills the folder of the given path, whose parent is temporary. If it raises, nothing is kept.
        field: name of the cache in messages.
        remedy: for a disk that is full or read-only.
    """
    finished = Path(cache_dir) / name
    if finished.exists():
        return finished
    # a disk's refusal may be this rank's alone
    raise_if_any(check_folder(field, cache_dir, writable=False))
    with disk(field, Path(cache_dir), remedy):
        finished.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(finished.with_name(f".{name}.lock")):
            if not finished.exists():
                _build(finished, build)
    return finished


def build_aside(finished: Path, build: Callable[[Path], None], field: str = "output") -> None:
    """Build a folder that a user named, where another process's result is not the same; ``build`` and ``field`` as for
    :func:`folder`."""
    remedy = "name a new folder"
    with disk(field, finished):
        finished.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(finished.with_name(f".{finished.name}.lock"), timeout=0)
        # at once: the other process may write something else
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(
                Problem(field, str(finished), "another process is writing it", remedy)
            ) from error
        try:
            if finished.exists() or not _build(finished, build):
                raise UserError(
                    Problem(field, str(finished), "another process wrote it meanwhile", remedy)
                )
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


@contextmanager
def disk(field: str, folder: Path, remedy: str | None = None) -> Iterator[None]:
    """Raise a :class:`DiskError` if the disk refuses a write."""
    try:
        yield
    except Exception as error:
        refused = disk_error(error, field, folder, remedy)
        if refused is None or isinstance(error, DiskError):
            raise
        raise refused from error


def _build(finished: Path, build: Callable[[Path], None]) -> bool:
    """Build and rename; return False if another machine was faster."""
    prefix = f"{finished.name}.building-{socket.gethostname()}-"
    # of a build that was killed
    for left_over in finished.parent.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=finished.parent))
    try:
        build(temporary / "done")
        for path in (*(temporary / "done").rglob("*"), temporary / "done"):
            storage.sync(path)
        # a folder that is not empty is never replaced by a rename
        try:
            os.rename(temporary / "done", finished)
        except OSError:
            if not finished.is_dir():
                raise
            return False
        storage.sync(finished.parent)
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
