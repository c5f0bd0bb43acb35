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
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tape_ds import paths

_HEAD = 512  # bytes that identify a file's format


@dataclass(frozen=True)
class File:
    """A file of some fsspec file system; picklable."""

    filesystem: AbstractFileSystem
    path: str

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open for reading, decompressed if its name or its first bytes are those of gzip, bzip2, xz or zstd.

        Raises:
            ValueError: it is a git-lfs pointer.
        """
        with self.filesystem.open(self.path, "rb") as raw:
            head = b""
            if raw.seekable():  # others are identified by their names alone
                head = raw.read(_HEAD)
                raw.seek(0)
            if paths.is_lfs_pointer(head):
                raise ValueError(": ".join(paths.LFS))
            for suffix, (magic, decompressed) in _COMPRESSED.items():
                if self.path.endswith(suffix) or head.startswith(magic):
                    yield cast(IO[bytes], io.BufferedReader(decompressed(raw)))
                    return
            yield raw


# suffix -> how such a file begins, and its reader
_COMPRESSED: dict[str, tuple[bytes, Callable[[Any], Any]]] = {
    ".gz": (b"\x1f\x8b\x08", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": (b"BZh91AY&SY", bz2.BZ2File),
    ".xz": (b"\xfd7zXZ\0", lzma.LZMAFile),
    ".zst": (b"\x28\xb5\x2f\xfd", lambda raw: pyarrow.CompressedInputStream(raw, "zstd")),
}


def find(pattern: str) -> dict[str, File]:
    """Return name -> file, sorted by name: the path below the pattern's fixed part. A remote file without wildcards is
    not searched for before it is opened."""
    if "://" not in pattern:
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
