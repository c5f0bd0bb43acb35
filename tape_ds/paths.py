"""Paths and texts as a person writes them: looked at without ever failing, and told when they can be none."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import Problem

FIELDS = ("output_dir", "data_cache", "data_dir", "resume", "resume_from_checkpoint", "model", "tokenizer")
"""Fields whose text is, or may be, a path."""

LONGEST_NAME, LONGEST = 255, 4096
"""Bytes of a name in a folder and of a whole path, at most, on every file system in use."""


def of(text: str) -> Path:
    """Return the path that ``text`` means, ``~`` included; where no user is called so, ``~`` is a name like any
    other."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def data_cache(given: str | None) -> Path:
    """Return the folder of the field ``data_cache``."""
    return storage.cache_home() / "data" if given is None else Path(given).expanduser()


def check(name: str, value: Any) -> Iterator[Problem]:
    """Why the value of field ``name`` cannot be the path that it should be, or cannot be written down at all."""
    if any("\x00" in text for text in _texts(value)):
        yield Problem(name, value, "holds a null byte, which ends a text", "remove it")
    elif not all(storage.is_utf8(text) for text in _texts(value)):
        yield Problem(name, value, "holds bytes that are no UTF-8", "write it in UTF-8")
    elif name in FIELDS and isinstance(value, str):
        yield from check_path(name, value)


def check_path(name: str, text: str) -> Iterator[Problem]:
    """Why ``text`` can be no path on this machine, whatever lies there."""
    if not text:  # a shell's variable that is not set, and not the current folder
        yield Problem(name, text, "empty", "give a path, or leave it out")
        return
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0].removeprefix("~")
        yield Problem(name, text, f"there is no user {user!r} here", "write the path without ~")
        return
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    if longest > LONGEST_NAME or len(os.fsencode(path)) > LONGEST:
        wrong = f"longer than a path may be ({LONGEST_NAME} bytes a name, {LONGEST} in all)"
        yield Problem(name, text, wrong, "give a shorter one")


_LFS = b"version https://git-lfs.github.com/spec/"
LFS = ("a git-lfs pointer, not the file itself", "git lfs pull, in the clone that it comes from")
"""What is wrong with a file that begins as such a pointer does, and the remedy."""


def is_lfs_pointer(head: bytes) -> bool:
    """Return whether a file that begins so only names what a clone without git-lfs did not fetch."""
    return head.startswith(_LFS)


def check_fetched(name: str, folder: str | Path) -> list[Problem]:
    """Whether a folder of files, if it is one, holds git-lfs pointers in their place."""
    pointers = []
    for file in sorted(Path(folder).glob("*")):
        with contextlib.suppress(OSError), file.open("rb") as opened:
            pointers += [file.name] * is_lfs_pointer(opened.read(len(_LFS)))
    if not pointers:
        return []
    wrong, remedy = LFS
    shown = ", ".join(pointers[:3]) + (f" and {len(pointers) - 3} more" if len(pointers) > 3 else "")
    return [Problem(name, str(folder), f"{shown}: {wrong}", remedy)]


def check_new(name: str, folder: Path) -> list[Problem]:
    """What keeps a new folder from lying at ``folder``; ``name`` is what names it on the command line."""
    if impossible := list(check_path(name, str(folder))):
        return impossible
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if existing == folder.absolute():
        wrong = "exists"
    elif not existing.is_dir():
        wrong = f"{existing} is no folder"
    else:
        return []
    return [Problem(name, str(folder), wrong, "name a new folder")]


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, keys of mappings included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
