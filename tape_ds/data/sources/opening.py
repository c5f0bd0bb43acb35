"""Files behind a pattern, here or elsewhere, and how they are opened.

A pattern with ``://`` is a URL of fsspec: ``hf://datasets/NAME[@REVISION]/PATH`` is a file of a repository of the
Hugging Face hub, ``zip://MEMBER::hf://...`` a file inside an archive there. Nothing is downloaded but what is read. All
other patterns are paths of this machine.
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


LARGE = 2**30
"""Bytes that may come out of anything, however small it was."""
RATIO = 1000
"""Bytes that may come out of one, beyond that: text of any language gives 3 to 10."""
_HEAD = 512
"""Bytes by which a file's format is known."""


class ForeignFileError(ValueError):
    """A file that is of another format than any that is read here, and the remedy."""

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
        """For reading, decompressed where its name or its first bytes are those of gzip, bzip2, xz or zstd.

        Args:
            is_text: whether formats that are no text are refused.

        Raises:
            ForeignFileError: it is a git-lfs pointer, or such a format.
            ValueError: absurdly much comes out of it; of compressed files, which do not say it beforehand, in reading.
        """
        with self.filesystem.open(self.path, "rb") as raw:
            if isinstance(raw, zipfile.ZipExtFile):
                member = self.filesystem.info(self.path)
                check_growth(member["file_size"], member["compress_size"])
            head = b""
            if raw.seekable():  # what cannot is known by its name alone
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


_COMPRESSED: dict[str, tuple[bytes, Callable[[Any], Any]]] = {
    ".gz": (b"\x1f\x8b\x08", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": (b"BZh91AY&SY", bz2.BZ2File),
    ".xz": (b"\xfd7zXZ\0", lzma.LZMAFile),
    ".zst": (b"\x28\xb5\x2f\xfd", _zstd),
}
"""End of a name -> how such a file begins, and its reader."""
_UTF16 = ("UTF-16, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW")
_UNPACK = "unpack it, and name the files"
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
"""How files of other formats begin -> what they are, and the remedy."""


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
    """Return whether fsspec has to find it."""
    return "://" in pattern


def unknown_protocol(pattern: str) -> str | None:
    """Return what is wrong with the protocols of a remote pattern; no network. None: nothing."""
    from fsspec import get_filesystem_class

    for link in pattern.split("::"):
        try:
            get_filesystem_class(link.partition("://")[0])
        except (ValueError, ImportError) as error:
            return str(error)
    return None


def find(pattern: str) -> dict[str, File]:
    """Name -> file, sorted by name: the path below the pattern's fixed part. A remote one without wildcards is not
    looked for before it is opened.

    Raises:
        OSError, ValueError, huggingface_hub.errors.HTTPError: a remote file system that does not answer, or not so.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    if not is_remote(pattern):
        return _find_here(PurePosixPath(pattern), LocalFileSystem())
    filesystem, path = url_to_fs(pattern)
    names = filesystem.glob(path) if glob.has_magic(path) else [path]
    names = [name for name in names if name == path or not filesystem.isdir(name)]
    place = PurePosixPath(path)  # a root folder has none above it
    root = next((parent for parent in place.parents if not glob.has_magic(str(parent))), place)
    return {PurePosixPath(name).relative_to(root).as_posix(): File(filesystem, name) for name in sorted(names)}


def _find_here(place: PurePosixPath, filesystem: "AbstractFileSystem") -> dict[str, File]:
    """As :func:`find`, on this machine. A file or folder that is called exactly so is meant, brackets included."""
    if os.path.isfile(place):
        return {place.name: File(filesystem, str(place))}
    root = next((parent for parent in place.parents if os.path.isdir(parent)), place)
    names = glob.glob(str(place.relative_to(root)), root_dir=root, recursive=True)
    return {name: File(filesystem, str(root / name)) for name in sorted(names) if os.path.isfile(root / name)}


def check_growth(given: int, taken: int) -> None:
    """Refuse ``given`` bytes out of ``taken`` where no data give as many: they would fill the memory.

    Raises:
        ValueError: they are too many.
    """
    if given > LARGE and given > RATIO * taken:
        raise ValueError(f"{given:,} bytes or more come out of {taken:,}")


class _Bounded(io.RawIOBase):
    """A decompressed stream that ends with an error when it gives more than data can."""

    def __init__(self, stream: Any, below: Any):
        self._stream = stream
        self._below = below
        self._given = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As the stream's."""
        count: int = self._stream.readinto(buffer)
        self._given += count
        check_growth(self._given, self._below.tell())
        return count
