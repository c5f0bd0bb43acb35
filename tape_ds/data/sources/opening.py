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
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from tape_ds import paths

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


LARGE = 2**30  # bytes of any decompressed file that are not yet suspicious
RATIO = 1000  # the most bytes from one compressed byte beyond that; text of any language gives 3 to 10
_HEAD = 512  # bytes that identify a file's format


class ForeignFileError(ValueError):
    """A file of an unsupported format, and the remedy."""

    def __init__(self, wrong: str, remedy: str):
        super().__init__(wrong)
        self.remedy = remedy


@dataclass(frozen=True)
class File:
    """A file of some fsspec file system; picklable."""

    filesystem: "AbstractFileSystem"
    path: str

    @contextmanager
    def open(self, *, is_text: bool = True) -> Iterator[IO[bytes]]:
        """Open for reading, decompressed if its name or its first bytes are those of gzip, bzip2, xz or zstd.

        Args:
            is_text: refuse formats that are not text.

        Raises:
            ForeignFileError: a git-lfs pointer, or an unsupported format.
            ValueError: a decompression bomb, at once or, where the size is not recorded, while reading.
        """
        with self.filesystem.open(self.path, "rb") as raw:
            if isinstance(raw, zipfile.ZipExtFile):
                member = self.filesystem.info(self.path)
                check_growth(member["file_size"], member["compress_size"])
            head = b""
            if raw.seekable():  # others are identified by their names alone
                head = raw.read(_HEAD)
                raw.seek(0)
            for suffix, (magic, decompressed) in _COMPRESSED.items():
                if self.path.endswith(suffix) or head.startswith(magic):
                    stream = io.BufferedReader(_Bounded(decompressed(raw), raw))
                    _refuse_foreign(stream.peek(_HEAD), is_text)
                    yield cast(IO[bytes], stream)
                    return
            _refuse_foreign(head, is_text)
            yield cast(IO[bytes], raw)


def _zstd(raw: Any) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(raw, "zstd")


# suffix -> how such a file begins, and its reader
_COMPRESSED: dict[str, tuple[bytes, Callable[[Any], Any]]] = {
    ".gz": (b"\x1f\x8b\x08", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": (b"BZh91AY&SY", bz2.BZ2File),
    ".xz": (b"\xfd7zXZ\0", lzma.LZMAFile),
    ".zst": (b"\x28\xb5\x2f\xfd", _zstd),
}
_UTF16 = ("UTF-16, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW")
_UNPACK = "unpack it, and name the files"
# how files of other formats begin -> their format, and the remedy
_FOREIGN = {
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"PK\x03\x04": (
        "a zip archive, or a document of an office program, which is one",
        f"{_UNPACK}, or one in it as zip://MEMBER::ARCHIVE; of a spreadsheet, export the rows as JSON lines",
    ),
    b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
    b"Rar!": ("a rar archive", _UNPACK),
    b"PAR1": ("a Parquet file", "read it as parquet:FILE#field"),
    b"ARROW1": ("an Arrow file", "save it as Parquet, and read it as parquet:FILE#field"),
    b"%PDF-": ("a PDF", "extract its text first, for example with pdftotext"),
}


def _refuse_foreign(head: bytes, is_text: bool) -> None:
    if paths.is_lfs_pointer(head):
        raise ForeignFileError(*paths.LFS)
    if not is_text:
        return
    if head[257:262] == b"ustar":
        raise ForeignFileError("a tar archive", _UNPACK)
    for magic, (wrong, remedy) in _FOREIGN.items():
        if head.startswith(magic):
            raise ForeignFileError(wrong, remedy)


def is_remote(pattern: str) -> bool:
    return "://" in pattern


def unknown_protocol(pattern: str) -> str | None:
    """Return the problem of a remote pattern's protocols, or None; no network."""
    from fsspec import get_filesystem_class

    for link in pattern.split("::"):
        try:
            get_filesystem_class(link.partition("://")[0])
        except (ValueError, ImportError) as error:
            return str(error)
    return None


def find(pattern: str) -> dict[str, File]:
    """Return name -> file, sorted by name: the path below the pattern's fixed part. A remote file without wildcards is
    not searched for before it is opened.

    Raises:
        OSError, ValueError, huggingface_hub.errors.HTTPError: errors of a remote file system.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

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


def check_growth(given: int, taken: int) -> None:
    """Raise ValueError for ``given`` bytes out of ``taken`` compressed ones if they would fill the memory."""
    if given > LARGE and given > RATIO * taken:
        raise ValueError(f"{given:,} bytes or more come out of {taken:,}")


class _Bounded(io.RawIOBase):
    """A decompressed stream with :func:`check_growth`."""

    def __init__(self, stream: Any, below: Any):
        self._stream = stream
        self._below = below
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._stream.readinto(buffer)
        self._given += count
        check_growth(self._given, self._below.tell())
        return count
