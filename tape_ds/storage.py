"""Files that are whole or absent, and on the disk: written aside, synced, renamed.

A rename within a folder is the one operation of a file system that either happened or did not, also after a loss of
power. Everything a run could need again goes through here.
"""

import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

HASHED_WHOLE = 64 * 2**20
"""Bytes up to which :func:`content_identity` reads all of a file: hashing terabytes takes longer than tokenising."""
BLOCKS, BLOCK_BYTES = 8, 16 * 2**10
"""What it reads of a larger one."""

_BY_TORCH = (errno.EIO, "torch could not write, as it is when a disk is full")
_SAID: dict[str, tuple[int, str]] = {
    **{os.strerror(number): (number, os.strerror(number)) for number in (*FULL, errno.EROFS)},
    **dict.fromkeys(("iostream error", "file write failed", "unexpected pos"), _BY_TORCH),
}
"""Words by which libraries that hide the system's error tell of a disk that refused: safetensors and tokenizers repeat
the system's own, torch does not say which it was."""
_WORDS = re.compile("|".join(map(re.escape, _SAID)))


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a file beside ``path`` and give it this name when it lies on the disk.

    It gets the permissions of the file that it replaces, or those of any new file: safetensors alone would let nobody
    else read it.

    Args:
        path: its folder is made if it is not there; a file of this name is replaced.
        write: given the path of the file aside, empty; what it raises is passed on, and nothing is left.

    Raises:
        OSError: the disk refused; names ``path``, whatever the library that wrote said of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        aside.touch()
        mode = stat.S_IMODE((path if path.is_file() else aside).stat().st_mode)
        write(aside)
        aside.chmod(mode)
        sync(aside)
        os.replace(aside, path)
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        raise OSError(refused.errno, refused.strerror, str(path)) from error
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """:func:`write_file` of a text, UTF-8."""
    write_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """:func:`write_file` of ``content`` as JSON; in ASCII, since names of files need not be Unicode."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table for programs; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


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


def content_identity(path: Path) -> str:
    """Return what tells a file's contents from others, wherever and whenever it was copied: its hash up to 64 MiB,
    above that its size and a hash of :data:`BLOCKS` blocks, evenly spread from its first byte to its last.

    A change of a large file is missed if it keeps the size and touches no block.
    """
    size = path.stat().st_size
    if size <= HASHED_WHOLE:
        return digest(path)
    digests = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(BLOCKS):
            file.seek((size - BLOCK_BYTES) * number // (BLOCKS - 1))
            digests.update(file.read(BLOCK_BYTES))
    return f"{size}:{digests.hexdigest()}"


def in_the_way(path: Path) -> Path | None:
    """Return what keeps a path from being a folder, or from becoming one: a file at its place or above it; None:
    nothing."""
    return next((each for each in (path, *path.absolute().parents) if each.exists() and not each.is_dir()), None)


def cache_home() -> Path:
    """Return where things are kept that can be made again, unpacked models and tokenised texts: ``tape_ds`` in
    ``XDG_CACHE_HOME``, else in ``HF_HOME``, where whoever has large models put theirs, else in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HF_HOME") or "~/.cache"
    return Path(home).expanduser() / "tape_ds"


def is_utf8(text: str) -> bool:
    """Return whether a text can be written: other bytes of a command line arrive as halves of a surrogate pair, and so
    does what JSON escapes that way."""
    return shown(text) == text


def shown(text: str) -> str:
    """Return a text with a question mark for whatever cannot be written."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def free_bytes(folder: Path) -> int:
    """Return bytes that this user can still write where ``folder`` is, or will be."""
    return shutil.disk_usage(_existing(folder)).free


def same_disk(one: Path, other: Path) -> bool:
    """Return whether two files or folders, there already or not, are on the same file system."""
    return _existing(one).stat().st_dev == _existing(other).stat().st_dev


def _existing(path: Path) -> Path:
    """``path``, or the nearest folder around it that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def refusal(error: BaseException) -> OSError | None:
    """Return what of the disk is behind ``error``: that it is full, read-only, or not this user's to write; None:
    nothing.

    Libraries wrap it, or repeat it as words alone: the causes of ``error`` are followed, and what they say is read. A
    file that may not be *read* is no refusal.
    """
    for each in _causes(error):
        if isinstance(each, OSError) and each.errno is not None:
            if each.errno in (*FULL, errno.EROFS) or (each.errno in READ_ONLY and _for_writing(each)):
                return each
        elif found := _WORDS.search(str(each)):
            return OSError(*_SAID[found.group()])
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """``error`` and all that led to it."""
    met: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in met:
            continue
        met.add(id(each))
        yield each
        waiting += [each.__context__, each.__cause__]


def _for_writing(error: OSError) -> bool:
    """Return whether a permission that is missing is one to write: the file can be read, or is not there to be read."""
    if not isinstance(error.filename, str | bytes):
        return False
    path = Path(os.fsdecode(error.filename))
    return os.access(path, os.R_OK) or (os.access(path.parent, os.X_OK) and not os.access(path.parent, os.W_OK))


def explain(error: OSError, folder: Path) -> str:
    """Why writing failed, in words: what is wrong with the disk of ``folder``, and how much is free there."""
    if error.errno in FULL:
        try:
            return f"the disk of {folder} is full ({size(free_bytes(folder))} free)"
        except OSError:
            return f"the disk of {folder} is full"
    if error.errno in READ_ONLY:
        return f"{error.filename or folder} cannot be written ({error.strerror})"
    if error.errno == errno.EIO:
        return f"{error.filename or folder}: {error.strerror} ({size(free_bytes(folder))} free)"
    return f"{error.filename or folder}: {error.strerror or error}"


def trouble(error: BaseException, folder: Path) -> str | None:
    """:func:`explain` of the trouble with a disk behind ``error``, any error of the system's; None where there is none.

    Libraries that write by themselves (torch, safetensors, tokenizers, arrow) tell of it by errors of their own, with
    the system's words in their text.
    """
    found = refusal(error) or next((each for each in _causes(error) if isinstance(each, OSError)), None)
    return None if found is None else explain(found, folder)


def size(count: float) -> str:
    """Return bytes as a person reads them: ``1.50 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
