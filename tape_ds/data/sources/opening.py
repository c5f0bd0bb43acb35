"""The files of a pattern, local or remote, opened and decompressed.

A pattern with ``://`` is a URL of fsspec: ``hf://datasets/NAME[@REVISION]/PATH`` is a file of a repository of the
Hugging Face hub, ``zip://MEMBER::hf://...`` a file inside an archive there. Only what is read is downloaded. All other
patterns are local paths.
"""

import bz2
import glob
import gzip
import io
import lzma
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, cast

import pyarrow
from fsspec import AbstractFileSystem, get_filesystem_class
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tape_ds import paths

_HEAD = 512  # bytes that identify a file's format


class ForeignFileError(ValueError):
    """A file of an unsupported format, and the remedy."""

    def __init__(self, wrong: str, remedy: str):
        super().__init__(wrong)
        self.remedy = remedy


@dataclass(frozen=True)
class File:
    """A file of some fsspec file system; picklable."""

    filesystem: AbstractFileSystem
    path: str

    @contextmanager
    def open(self, *, is_text: bool = True) -> Iterator[IO[bytes]]:
        """Open for reading, decompressed if its name or its first bytes are those of gzip, bzip2, xz or zstd; refuse a
        git-lfs pointer, and of a text a tar archive."""

        def checked(head: bytes, stream: Any) -> IO[bytes]:
            # other formats are not UTF-8, so they are not read as text
            if paths.is_lfs_pointer(head):
                raise ForeignFileError(*paths.LFS)
            if is_text and head[257:262] == b"ustar":
                raise ForeignFileError("a tar archive", "unpack it, and name the files")
            return cast(IO[bytes], stream)

        with self.filesystem.open(self.path, "rb") as raw:
            head = b""
            if raw.seekable():  # others are identified by their names alone
                head = raw.read(_HEAD)
                raw.seek(0)
            for suffix, (magic, decompressed) in _COMPRESSED.items():
                if self.path.endswith(suffix) or head.startswith(magic):
                    stream = io.BufferedReader(decompressed(raw))
                    yield checked(stream.peek(_HEAD), stream)
                    return
            yield checked(head, raw)


# suffix -> how such a file begins, and its reader
_COMPRESSED: dict[str, tuple[bytes, Callable[[Any], Any]]] = {
    ".gz": (b"\x1f\x8b\x08", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": (b"BZh91AY&SY", bz2.BZ2File),
    ".xz": (b"\xfd7zXZ\0", lzma.LZMAFile),
    ".zst": (b"\x28\xb5\x2f\xfd", lambda raw: pyarrow.CompressedInputStream(raw, "zstd")),
}


def is_remote(pattern: str) -> bool:
    return "://" in pattern


def unknown_protocol(pattern: str) -> str | None:
    """Return the problem of a remote pattern's protocols, or None; no network."""
    for link in pattern.split("::"):
        try:
            get_filesystem_class(link.partition("://")[0])
        except (ValueError, ImportError) as error:
            return str(error)
    return None


def find(pattern: str) -> dict[str, File]:
    """Return name -> file, sorted by name: the path below the pattern's fixed part. A remote file without wildcards is
    not searched for before it is opened."""
    if not is_remote(pattern):
        local, place = LocalFileSystem(), PurePosixPath(pattern)
        if os.path.isfile(place):  # an exact name, brackets included
            return {place.name: File(local, str(place))}
        root = next((parent for parent in place.parents if os.path.isdir(parent)), place)
        names = glob.glob(str(place.relative_to(root)), root_dir=root, recursive=True)
        return {name: File(local, str(root / name)) for name in sorted(names) if os.path.isfile(root / name)}
    filesystem, path = url_to_fs(pattern)
    names = filesystem.glob(path) if glob.has_magic(path) else [path]
    names = [name for name in names if name == path or not filesystem.isdir(name)]
    place = PurePosixPath(path)  # a root folder has none above it
    root = next((parent for parent in place.parents if not glob.has_magic(str(parent))), place)
    return {PurePosixPath(name).relative_to(root).as_posix(): File(filesystem, name) for name in sorted(names)}
