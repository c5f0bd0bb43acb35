"""Folders that are built once and read from then on, whoever asks first and however many ask at once.

A folder's name is a hash of everything that decides its contents. On one machine a file lock lets the first build and
the rest wait. The lock only saves work: a folder is written aside and renamed when it is complete, so that no reader
ever sees half of one, and two machines that share a disk whose locks do not reach across can at worst build the same
thing twice.
"""

import glob
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def key(kind: str, **parts: Any) -> str:
    """A folder's name, ``kind-HASH``: equal for equal ``parts`` (anything JSON can hold), in every process."""
    described = json.dumps(parts, sort_keys=True)
    return f"{kind}-{hashlib.sha256(described.encode()).hexdigest()[:32]}"


def folder(cache_dir: str | Path, name: str, build: Callable[[Path], None]) -> Path:
    """The finished folder ``cache_dir/name``, built by whoever comes first.

    Args:
        cache_dir: made if it is not there.
        name: of :func:`key`.
        build: given the path of a folder that is not there yet; makes and fills it. Its parent is there, for this
            build alone, and goes with all else in it. What ``build`` raises is passed on, and nothing is kept.
    """
    from filelock import FileLock

    cache_dir = Path(cache_dir)
    finished = cache_dir / name
    if not finished.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir / f"{name}.lock"):
            if not finished.exists():
                build_aside(finished, build)
    return finished


def build_aside(finished: Path, build: Callable[[Path], None]) -> None:
    """Build elsewhere, then rename. Nobody else on this machine may be building ``finished`` at the same time."""
    finished.parent.mkdir(parents=True, exist_ok=True)
    here = f"{finished.name}.building-{socket.gethostname()}-"
    for left_over in finished.parent.glob(f"{glob.escape(here)}*"):  # of a build that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=here, dir=finished.parent))
    try:
        build(aside / "done")
        _rename(aside / "done", finished)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _rename(done: Path, finished: Path) -> None:
    """Give a complete folder its name; if another machine was faster, its folder is as good."""
    try:
        os.rename(done, finished)
    except OSError:
        if not finished.is_dir():
            raise
