"""Validate user-supplied paths and texts without raising."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import Problem, check_folder
from tape_ds.numbers import some

FIELDS = (
    "output_dir",
    "data_cache",
    "data_dir",
    "resume",
    "resume_from_checkpoint",
    "model",
    "tokenizer",
)
"""Fields whose text is, or may be, a path."""

LONGEST_NAME = 255
LONGEST = 4096
"""Limits of a file name and of a path, in bytes, on common file systems."""


def of(text: str) -> Path:
    """Return ``text`` as a path, ``~`` expanded if there is such a user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def data_cache(given: str | None) -> Path:
    if given is None:
        return storage.cache_home() / "data"
    return Path(given).expanduser()


def check(name: str, value: Any) -> Iterator[Problem]:
    """Check the value of field ``name`` as a text, and as a path if it is one."""
    if any("\x00" in text for text in _texts(value)):
        yield Problem(name, value, "holds a null byte, which ends a text", "remove it")
    elif not all(map(storage.is_utf8, _texts(value))):
        yield Problem(name, value, "holds bytes that are not UTF-8", "write it in UTF-8")
    elif name in FIELDS and isinstance(value, str):
        yield from check_path(name, value)


def check_path(name: str, text: str) -> Iterator[Problem]:
    """Check that ``text`` can be a path on this machine."""
    # an unset shell variable, and not the current folder
    if not text:
        yield Problem(name, text, "empty", "give a path, or leave it out")
        return
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0].removeprefix("~")
        yield Problem(name, text, f"there is no user {user!r} here", "write the path without ~")
        return
    # limits are of bytes, and a letter may have four
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    if longest > LONGEST_NAME or len(os.fsencode(path)) > LONGEST:
        wrong = f"longer than a path may be ({LONGEST_NAME} bytes a name, {LONGEST} in all)"
        yield Problem(name, text, wrong, "give a shorter one")


_LFS = b"version https://git-lfs.github.com/spec/"
LFS = ("a git-lfs pointer, not the file itself", "git lfs pull, in the clone that it comes from")
NO_FILE = ("a pipe, a socket or a device, not a file", "give a folder that holds files alone")
"""Problems and remedies."""


def is_lfs_pointer(head: bytes) -> bool:
    """Return whether a file's first bytes are those of a git-lfs pointer."""
    return head.startswith(_LFS)


def check_fetched(name: str, folder: str | Path) -> list[Problem]:
    """Check a folder, if it is one, for what looks like a file of it and is none: git-lfs pointers, and pipes and
    devices, on which whatever reads them would wait without an end."""
    pointers: list[str] = []
    no_files: list[str] = []
    for file in sorted(Path(folder).glob("*")):
        # folders, and links to nothing, are read by nothing
        if not file.exists() or file.is_dir():
            continue
        if not file.is_file():
            no_files.append(file.name)
            continue
        with contextlib.suppress(OSError), file.open("rb") as opened:
            if is_lfs_pointer(opened.read(len(_LFS))):
                pointers.append(file.name)
    problems = []
    for names, (wrong, remedy) in ((pointers, LFS), (no_files, NO_FILE)):
        if names:
            problems.append(Problem(name, str(folder), f"{some(names, 3)}: {wrong}", remedy))
    return problems


def check_new(name: str, folder: Path) -> list[Problem]:
    """Check that ``folder``, given as option ``name``, can be created."""
    if impossible := list(check_path(name, str(folder))):
        return impossible
    if os.path.lexists(folder):
        return [Problem(name, str(folder), "exists", "name a new folder")]
    return check_folder(name, folder)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
