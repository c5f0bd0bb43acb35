"""Files that are whole or absent, and on the disk: written aside, synced, renamed.

A rename within a folder is the one operation of a file system that either happened or did not, also after a loss of
power. Everything a run could need again goes through here.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a file beside ``path`` and give it this name when it lies on the disk.

    Args:
        path: its folder is made if it is not there; a file of this name is replaced.
        write: given the path of the file aside; what it raises is passed on, and nothing is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        write(aside)
        sync(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """:func:`write_file` of a text, UTF-8."""
    write_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """:func:`write_file` of ``content`` as JSON."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """Have the system put a file's contents, or a folder's names, onto the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # a file system that syncs no folders
            raise
    finally:
        os.close(opened)


def digest(path: Path) -> str:
    """SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write where ``folder`` is, or will be."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def explain(error: OSError, folder: Path) -> str:
    """Why writing failed, in words: what is wrong with the disk of ``folder``, and how much is free there."""
    if error.errno in FULL:
        try:
            return f"the disk of {folder} is full ({size(free_bytes(folder))} free)"
        except OSError:
            return f"the disk of {folder} is full"
    if error.errno in READ_ONLY:
        return f"{error.filename or folder} cannot be written ({error.strerror})"
    return f"{error.filename or folder}: {error.strerror or error}"


def size(count: float) -> str:
    """Bytes as a person reads them: ``1.50 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
