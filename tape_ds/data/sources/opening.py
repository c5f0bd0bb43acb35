"""Files behind a pattern, here or elsewhere, and how they are opened.

A pattern with ``://`` is a URL of fsspec: ``hf://datasets/NAME[@REVISION]/PATH`` is a file of a repository of the
Hugging Face hub, ``zip://MEMBER::hf://...`` a file inside an archive there. Nothing is downloaded but what is read. All
other patterns are paths of this machine.
"""

import glob
import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


LARGE = 2**30
"""Bytes that may come out of anything, however small it was."""
RATIO = 1000
"""Bytes that may come out of one, beyond that: text of any language gives 3 to 10."""


@dataclass(frozen=True)
class File:
    """A file of some fsspec file system; picklable."""

    filesystem: "AbstractFileSystem"
    path: str

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """For reading, decompressed when it is called ``.gz`` or ``.zst``.

        Raises:
            ValueError: absurdly much comes out of it; of ``.gz`` and ``.zst``, which do not say it beforehand, in
                reading.
        """
        with self.filesystem.open(self.path, "rb") as raw:
            if isinstance(raw, zipfile.ZipExtFile):
                member = self.filesystem.info(self.path)
                check_growth(member["file_size"], member["compress_size"])
            if self.path.endswith(".gz"):
                yield io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=raw), raw))
            elif self.path.endswith(".zst"):
                import pyarrow

                yield io.BufferedReader(_Bounded(pyarrow.CompressedInputStream(raw, "zstd"), raw))
            else:
                yield cast(IO[bytes], raw)


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

    if is_remote(pattern):
        filesystem, path = url_to_fs(pattern)
        names = filesystem.glob(path) if glob.has_magic(path) else [path]
        names = [name for name in names if name == path or not filesystem.isdir(name)]
    else:
        filesystem, path = LocalFileSystem(), pattern
        names = [name for name in glob.glob(pattern, recursive=True) if Path(name).is_file()]
    place = PurePosixPath(path)  # a root folder has none above it
    root = next((parent for parent in place.parents if not glob.has_magic(str(parent))), place)
    return {PurePosixPath(name).relative_to(root).as_posix(): File(filesystem, name) for name in sorted(names)}


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
