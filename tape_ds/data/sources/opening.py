"""Files behind a pattern, here or elsewhere, and how they are opened: what the kinds over globs of files read.

A pattern with ``://`` is one of fsspec: ``hf://datasets/NAME[@REVISION]/PATH`` is a file of a repository of the
Hugging Face hub, whether or not the hub can show it as a dataset; ``zip://MEMBER::hf://...`` is a file inside an
archive there. Nothing is downloaded but what is read. All others are paths of this machine.

What comes from outside may be made to do harm: archives are checked (:mod:`tape_ds.data.archives`), and a compressed
file is read no further when more comes out of it than of any data.
"""

import glob
import gzip
import io
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from tape_ds.data import archives

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


@dataclass(frozen=True)
class RemoteFile:
    """A file of some fsspec file system; picklable."""

    filesystem: "AbstractFileSystem"
    path: str

    @property
    def name(self) -> str:
        """As a path's."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """As a path's."""
        return PurePosixPath(self.path).suffix

    def open(self, mode: str) -> Any:
        """For reading, from its beginning."""
        return self.filesystem.open(self.path, mode)


File = Path | RemoteFile


def is_remote(pattern: str) -> bool:
    """Whether fsspec has to find it."""
    return "://" in pattern


def unknown_protocol(pattern: str) -> str | None:
    """What is wrong with the protocols of a remote pattern; no network. None: nothing."""
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
        UnsafeArchiveError: an archive with a member that none should have.
        OSError, ValueError, huggingface_hub.errors.HTTPError: a remote file system that does not answer, or not so.
    """
    if not is_remote(pattern):
        matches = [Path(match) for match in glob.glob(pattern, recursive=True)]
        root = _fixed_part(pattern)
        return dict(sorted((path.relative_to(root).as_posix(), path) for path in matches if path.is_file()))
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(pattern)
    archives.check_filesystem(filesystem)
    names = sorted(filesystem.glob(path)) if glob.has_magic(path) else [path]
    root = _fixed_part(path)
    return {
        PurePosixPath(name).relative_to(root).as_posix(): RemoteFile(filesystem, name)
        for name in names
        if name == path or not filesystem.isdir(name)
    }


def open_binary(file: File) -> IO[bytes]:
    """``file`` for reading, decompressed when it is called ``.gz`` or ``.zst``; reading raises
    :class:`tape_ds.data.archives.UnsafeArchiveError` where absurdly much comes out."""
    raw = file.open("rb")
    if file.suffix == ".gz":
        return cast(IO[bytes], _Closing(gzip.GzipFile(fileobj=raw), raw))
    if file.suffix == ".zst":
        import pyarrow

        return cast(IO[bytes], _Closing(pyarrow.CompressedInputStream(raw, "zstd"), raw))
    return cast(IO[bytes], raw)


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
        if self._given > archives.LARGE and archives.too_much(self._given, self._below.tell()):
            wrong = f"more than {self._given:,} bytes come out of {self._below.tell():,}"
            raise archives.UnsafeArchiveError(wrong)
        return count

    def close(self) -> None:
        """The stream's, too."""
        super().close()
        self._stream.close()


class _Closing(io.BufferedReader):
    """A decompressed stream that closes the file below it, too."""

    def __init__(self, stream: Any, below: Any):
        super().__init__(_Bounded(stream, below))
        self._below = below

    def close(self) -> None:
        """Both."""
        super().close()
        self._below.close()


def _fixed_part(pattern: str) -> Path:
    """The folder above a glob's first wildcard (of a plain path: its folder)."""
    path = Path(pattern)
    parents = [path.parent, *path.parent.parents]
    return next(parent for parent in parents if not glob.has_magic(str(parent)))
