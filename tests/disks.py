"""Disks that refuse, for tests: a small one that fills up and one that is read-only, where this user may mount them."""

import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str = "256k"):
    """A file system of that size at ``folder``; skips the test where none can be mounted."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(["mount", *options], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("this user may mount nothing")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def small_files(limit: int):
    """A limit in bytes on the files that this process writes, as of ``ulimit -f``; Python ignores the signal for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def make_read_only(folder: Path) -> None:
    """What is mounted at ``folder`` takes nothing more."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def files(folder: Path) -> list[str]:
    """Names of everything below ``folder``."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
