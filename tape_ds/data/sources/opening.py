"""Files behind a pattern, here or elsewhere, and how they are opened: what the kinds over globs of files read.

A pattern with ``://`` is one of fsspec: ``hf://datasets/NAME[@REVISION]/PATH`` is a file of a repository of the
Hugging Face hub, whether or not the hub can show it as a dataset; ``zip://MEMBER::hf://...`` is a file inside an
archive there. Nothing is downloaded but what is read. All others are paths of this machine.
"""

import glob
import gzip
import io
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

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
        OSError, ValueError, huggingface_hub.errors.HTTPError: a remote file system that does not answer, or not so.
    """
    if not is_remote(pattern):
        matches = [Path(match) for match in glob.glob(pattern, recursive=True)]
        root = _fixed_part(pattern)
        return dict(sorted((path.relative_to(root).as_posix(), path) for path in matches if path.is_file()))
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(pattern)
    names = sorted(filesystem.glob(path)) if glob.has_magic(path) else [path]
    root = _fixed_part(path)
    return {
        PurePosixPath(name).relative_to(root).as_posix(): RemoteFile(filesystem, name)
        for name in names
        if name == path or not filesystem.isdir(name)
    }


def open_binary(file: File) -> IO[bytes]:
    """``file`` for reading, decompressed when it is called ``.gz`` or ``.zst``."""
    raw = file.open("rb")
    if file.suffix == ".gz":
        return cast(IO[bytes], _Closing(gzip.GzipFile(fileobj=raw), raw))
    if file.suffix == ".zst":
        import pyarrow

        return cast(IO[bytes], _Closing(pyarrow.CompressedInputStream(raw, "zstd"), raw))
    return cast(IO[bytes], raw)


class _Closing(io.BufferedReader):
    """A decompressed stream that closes the file below it, too."""

    def __init__(self, stream: Any, below: Any):
        super().__init__(stream)
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
