"""The files of a pattern, local or remote, opened and decompressed.

A pattern with ``://`` is a URL of fsspec: ``hf://datasets/NAME[@REVISION]/PATH`` is a file of a repository of the
Hugging Face hub, ``zip://MEMBER::hf://...`` a file inside an archive there. Only what is read is downloaded. All other
patterns are local paths.

What a file grows to is counted while it is read, so that a small one cannot fill the memory or take for ever: more than
:data:`GROWN` bytes that are also :data:`TIMES` its stored size are refused, and so is one line, or one text, of more
than :data:`LONGEST` bytes.
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
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tape_ds import paths, storage

GROWN = 2**30
TIMES = 1000
LONGEST = 2**30
# bytes that identify a file's format
_HEAD = 512
# bytes that are decompressed at a time
_BLOCK = 2**17


@dataclass(frozen=True)
class File:
    """A file of some fsspec file system; picklable."""

    filesystem: AbstractFileSystem
    path: str

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open for reading, decompressed if its name or its first bytes are those of gzip, bzip2, xz or zstd.

        Raises:
            ValueError: it is a git-lfs pointer, no file, or grows beyond all measure, also while it is read.
        """
        with self._raw() as raw:
            head = b""
            # others are identified by their names alone
            if raw.seekable():
                head = raw.read(_HEAD)
                raw.seek(0)
            if paths.is_lfs_pointer(head):
                raise ValueError(": ".join(paths.LFS))
            for suffix, (magic, decompressed) in _COMPRESSED.items():
                if self.path.endswith(suffix) or head.startswith(magic):
                    packed = Counted(raw)
                    size = self._size(raw)
                    grown = Counted(
                        decompressed(io.BufferedReader(packed, _BLOCK)), size or packed.tell
                    )
                    yield io.BufferedReader(grown, _BLOCK)
                    return
            yield io.BufferedReader(Counted(raw, self._stored()), _BLOCK)

    def _raw(self) -> Any:
        try:
            return self.filesystem.open(self.path, "rb")
        except (KeyError, AttributeError, RecursionError) as error:
            # of tarfile; two links may name one another
            raise ValueError("a link to what is not in the archive, or no file") from error
        except FileNotFoundError as error:
            if error.strerror is not None:
                raise
            # fsspec's error is the name alone
            raise ValueError("no file of this name is in the archive") from error

    def _size(self, raw: Any) -> int | None:
        if raw.seekable():
            size = raw.seek(0, os.SEEK_END)
            raw.seek(0)
            return cast(int, size)
        return cast(int | None, self.filesystem.info(self.path).get("size"))

    def _stored(self) -> int | None:
        """Return the bytes of an archive's member in the archive; of a tar's those of the whole archive, since it is
        compressed as a whole and its sparse members are not stored at all. None for what grows not at all."""
        archive = getattr(self.filesystem, "of", None)
        if not isinstance(archive, OpenFile):
            return None
        own = self.filesystem.info(self.path).get("compress_size")
        return cast(int | None, archive.fs.info(archive.path).get("size") if own is None else own)


class Counted(io.RawIOBase):
    """A stream whose position is held against the bytes that it was ``stored`` in: a number, or what returns it as far
    as it is read; None: any length is right."""

    def __init__(self, inner: Any, stored: int | Callable[[], int] | None = None):
        self._inner = inner
        self._stored = stored
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._inner.seekable())

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = self._inner.seek(offset, whence)
        self._check()
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        self._check()
        return len(data)

    def _check(self) -> None:
        if self._position <= GROWN or self._stored is None:
            return
        stored = self._stored() if callable(self._stored) else self._stored
        if self._position > TIMES * stored:
            wrong = f"it grows to more than {storage.size(GROWN)} and {TIMES:,} times"
            wrong += f" the {storage.size(stored)} that it is stored in (if that is right, decompress it yourself)"
            raise ValueError(wrong)


def lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream. Raises ValueError at one of more than :data:`LONGEST` bytes."""
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise ValueError(f"line {number:,} has more than {storage.size(LONGEST)}")
        yield line


def whole(stream: IO[bytes]) -> bytes:
    """Return what a stream holds. Raises ValueError if that is more than :data:`LONGEST` bytes."""
    parts: list[bytes] = []
    size = 0
    while part := stream.read(_BLOCK):
        parts.append(part)
        size += len(part)
        if size > LONGEST:
            raise ValueError(f"one document of more than {storage.size(LONGEST)}")
    return b"".join(parts)


def check_columns(table: Any) -> None:
    """Check a Parquet file's metadata. Raises ValueError for a column's part that grows beyond all measure."""
    for group in range(table.num_row_groups):
        for index in range(table.num_columns):
            column = table.row_group(group).column(index)
            grown = column.total_uncompressed_size
            stored = column.total_compressed_size
            if grown > GROWN and grown > TIMES * stored:
                wrong = f"column {column.path_in_schema!r} grows to {storage.size(grown)} from {storage.size(stored)}"
                raise ValueError(wrong)


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
        local = LocalFileSystem()
        place = PurePosixPath(pattern)
        # an exact name, brackets included
        if os.path.isfile(place):
            return {place.name: File(local, str(place))}
        root = next((parent for parent in place.parents if os.path.isdir(parent)), place)
        names = glob.glob(str(place.relative_to(root)), root_dir=root, recursive=True)
        files = {}
        for name in sorted(names):
            if os.path.isfile(root / name):
                files[name] = File(local, str(root / name))
        return files
    filesystem, path = url_to_fs(pattern)
    names = filesystem.glob(path) if glob.has_magic(path) else [path]
    names = [name for name in names if name == path or not filesystem.isdir(name)]
    # a root folder has none above it
    place = PurePosixPath(path)
    root = next((parent for parent in place.parents if not glob.has_magic(str(parent))), place)
    return {
        PurePosixPath(name).relative_to(root).as_posix(): File(filesystem, name)
        for name in sorted(names)
    }
