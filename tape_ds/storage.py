"""Write files so that they are complete or absent, also after a loss of power: write to another name, sync, rename."""

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import resource
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, a quota or a limit on a file's size (``ulimit -f``, or the file system's own) that is reached."""
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

HASHED_WHOLE = 64 * 2**20
"""Size up to which :func:`content_identity` reads a whole file: hashing terabytes takes longer than tokenising."""
BLOCKS = 8
BLOCK_BYTES = 16 * 2**10
"""Bytes that it reads of a larger file."""

# libraries hide the system's error: safetensors and tokenizers repeat its text, torch does not
_BY_TORCH = (errno.EIO, "torch could not write, as it is when a disk is full")
_MESSAGES: dict[str, tuple[int, str]] = {
    **{os.strerror(number): (number, os.strerror(number)) for number in (*FULL, errno.EROFS)},
    **dict.fromkeys(("iostream error", "file write failed", "unexpected pos"), _BY_TORCH),
}
_ANY_MESSAGE = re.compile("|".join(map(re.escape, _MESSAGES)))


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file next to ``path``, and rename it when it is on the disk.

    The folder is created, and an existing file replaced, which passes its permissions on. If ``write`` raises, nothing
    is left; a refusal of the disk becomes an OSError that names ``path``, whatever the library raised.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        temporary.touch()
        # an older file's permissions, or those that this process gives to new ones
        mode = stat.S_IMODE((path if path.is_file() else temporary).stat().st_mode)
        write(temporary)
        # safetensors makes files that only their owner can read
        temporary.chmod(mode)
        sync(temporary)
        os.replace(temporary, path)
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        raise OSError(refused.errno, refused.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """:func:`write_file` of JSON, in ASCII: file names need not be Unicode."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def sync(path: Path) -> None:
    """Flush a file's contents, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some file systems cannot sync folders
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_identity(path: Path) -> str:
    """Identify a file by its contents alone: by its hash up to 64 MiB; above that by its size and a hash of
    :data:`BLOCKS` evenly spaced blocks, which misses a change that keeps the size and touches none of them."""
    size = path.stat().st_size
    if size <= HASHED_WHOLE:
        return digest(path)
    digests = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(BLOCKS):
            file.seek((size - BLOCK_BYTES) * number // (BLOCKS - 1))
            digests.update(file.read(BLOCK_BYTES))
    return f"{size}:{digests.hexdigest()}"


def cache_home() -> Path:
    """Return the folder for unpacked models and tokenised texts: ``tape_ds`` in ``XDG_CACHE_HOME``, else in
    ``HF_HOME``, which is on a large disk where models are large, else in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HF_HOME") or "~/.cache"
    return Path(home).expanduser() / "tape_ds"


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded: invalid bytes of a command line, and some JSON escapes, become lone
    surrogates."""
    return shown(text) == text


def shown(text: str) -> str:
    """Return a text with a question mark for each lone surrogate."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(existing(folder.resolve())).free


def disk_of(path: Path) -> int:
    return existing(path.resolve()).stat().st_dev


def existing(path: Path) -> Path:
    """Return ``path`` or, of the folders around it, the innermost that exists."""
    return next(filter(os.path.lexists, (path.absolute(), *path.absolute().parents)))


def refusal(error: BaseException) -> OSError | None:
    """Return the error of a disk that is full, read-only or not writable for this user, if it caused ``error``.

    Libraries wrap it, or repeat its text alone: causes are followed and their texts searched. A file that may not be
    *read* is no refusal.
    """
    chain = list(causes(error))
    for cause in chain:
        if not isinstance(cause, OSError):
            continue
        if cause.errno in (*FULL, errno.EROFS):
            return cause
        if cause.errno in READ_ONLY and isinstance(cause.filename, str | bytes):
            # a missing permission to write: the file can be read, or does not exist yet
            path = Path(os.fsdecode(cause.filename))
            if os.access(path, os.R_OK) or (
                os.access(path.parent, os.X_OK) and not os.access(path.parent, os.W_OK)
            ):
                return cause
    # after the system's own errors: torch raises its own words over them
    for cause in chain:
        is_system = isinstance(cause, OSError) and cause.errno is not None
        words = None if is_system else _ANY_MESSAGE.search(str(cause))
        if words is not None:
            return OSError(*_MESSAGES[words.group()])
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that caused it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            waiting += [cause.__context__, cause.__cause__]


def file_limit() -> int | None:
    """Return the bytes that a file may have that this process writes (``ulimit -f``); None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return limit


def explain(error: OSError, folder: Path) -> str:
    """Return why writing to ``folder`` failed, with the free space if the disk may be full, or the limit on a file."""
    limit = file_limit()
    limited = ""
    if limit is not None:
        limited = f"this process may write files of {size(limit)} at most (ulimit -f)"
    if error.errno == errno.EFBIG:
        return f"a file in {folder} is too large: {limited or 'its file system does not allow larger ones'}"
    if error.errno in FULL:
        with contextlib.suppress(OSError):
            return f"the disk of {folder} is full ({size(free_bytes(folder))} free)"
        return f"the disk of {folder} is full"
    if error.errno in READ_ONLY:
        return f"{error.filename or folder} cannot be written ({error.strerror})"
    known = ""
    # torch's words, perhaps for a limit
    if error.errno == errno.EIO:
        facts = filter(None, (f"{size(free_bytes(folder))} free", limited))
        known = f" ({'; '.join(facts)})"
    return f"{error.filename or folder}: {error.strerror or error}{known}"


def trouble(error: BaseException, folder: Path) -> str | None:
    """:func:`explain` the system error that caused ``error``; None if there is none."""
    found = refusal(error) or next(
        (cause for cause in causes(error) if isinstance(cause, OSError)), None
    )
    if found is None:
        return None
    return explain(found, folder)


def size(count: float) -> str:
    """Return bytes for people: ``1.50 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            if unit == "bytes":
                return f"{count:.0f} {unit}"
            return f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
