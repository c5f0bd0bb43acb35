"""What code writes while it is watched, by Python's audit events."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
_OUTSIDE = {"socket.connect", "socket.getaddrinfo", "os.system", "os.exec", "os.posix_spawn", "os.spawn"}

_watching: tuple[list[Path], list[str]] | None = None
_installed = False


@contextlib.contextmanager
def watched(allowed: Sequence[Path]) -> Iterator[list[str]]:
    """Collect everything that this process changes on a disk, asks of the network or starts meanwhile.

    Args:
        allowed: folders in which it may write. Python's own compiled files are not counted.
    """
    global _watching, _installed
    if not _installed:  # a hook stays for ever
        sys.addaudithook(_notice)
        _installed = True
    found: list[str] = []
    _watching = ([path.resolve() for path in allowed], found)
    try:
        yield found
    finally:
        _watching = None


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else _opens_to_write(flags)
        if writes and not isinstance(path, int):
            _note(event, path)
    elif event in _CHANGES:
        _note(event, arguments[0])
    elif event in _OUTSIDE:
        _watching[1].append(f"{event} {arguments[1:2] or arguments}")


def _opens_to_write(flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _note(event: str, path: Any) -> None:
    assert _watching is not None
    allowed, found = _watching
    name = os.fsdecode(path)
    if "__pycache__" in name or name in ("/dev/null", os.devnull):
        return
    if not any(Path(name).absolute().is_relative_to(folder) for folder in allowed):
        found.append(f"{event} {name}")
