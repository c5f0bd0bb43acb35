"""``text``, ``jsonl`` and ``parquet``: documents in the files that a glob names."""

import glob
import gzip
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, cast

from tape_ds.data.sources.base import UNREADABLE, Document, Shard, Source, file_identity
from tape_ds.errors import Problem, UserError, did_you_mean

_PEEKED_FILES = 32
_REPAIR = "repair the file, or leave it out of the glob"


class _Files(Source):
    """What the kinds over a glob of files share; a name is the path below the glob's fixed part."""

    needs_column: ClassVar[bool] = True

    def __init__(self, address: str, field: str = "data"):
        super().__init__(address, field)
        self.pattern, _, self.column = self.rest.rpartition("#") if "#" in self.rest else (self.rest, "", "")
        self.pattern = str(Path(self.pattern).expanduser()) if self.pattern else ""

    def paths(self) -> dict[str, Path]:
        """Name -> file, sorted by name."""
        matches = [Path(match) for match in glob.glob(self.pattern, recursive=True)]
        root = _fixed_part(self.pattern)
        return dict(sorted((path.relative_to(root).as_posix(), path) for path in matches if path.is_file()))

    def check(self) -> list[Problem]:
        """The glob matches, the column is named, and the first files have it."""
        problems = []
        if self.needs_column and not self.column:
            problems.append(self.problem("no '#field' says which column holds the text", f"write {self.form}"))
        if not self.needs_column and self.column:
            problems.append(self.problem("a text file has no '#field'", f"write {self.form}"))
        paths = self.paths() if self.pattern else {}
        if not paths:
            magic = glob.has_magic(self.pattern)
            wrong = "no file matches" if magic else "no such file"
            problems.append(self.problem(wrong, f"check the path; relative ones start at {Path.cwd()}"))
        if not problems:
            for name, path in islice(paths.items(), _PEEKED_FILES):
                problems += self._peek(name, path)
        return problems

    def _peek(self, name: str, path: Path) -> list[Problem]:
        """Problems visible in the first bytes of one file."""
        try:
            columns = self._columns(path)
        except UserError as error:
            return error.problems
        except UNREADABLE as error:
            return [self.problem(f"{name} cannot be read: {error}", _REPAIR)]
        if columns is None or self.column in columns:
            return []
        return [self.problem(f"{name} has no column {self.column!r}", did_you_mean(self.column, columns))]

    @abstractmethod
    def _columns(self, path: Path) -> list[str] | None:
        """Column names from the head of ``path``; None where the kind has none or the file is empty."""

    def shards(self, split: str) -> list[Shard]:
        """A shard for each file."""
        return [Shard(name, partial(self._shard, name, path)) for name, path in self.paths().items()]

    def _shard(self, name: str, path: Path) -> Iterator[Document]:
        return self.reading(self._read(name, path), f"{name} cannot be read", _REPAIR)

    @abstractmethod
    def _read(self, name: str, path: Path) -> Iterator[Document]:
        """The documents of one file."""

    def fingerprint(self) -> str:
        """Names, column and the identity of each file's contents (:func:`file_identity`)."""
        parts = [self.kind, self.column]
        parts += [f"{name}={file_identity(path)}" for name, path in self.paths().items()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        """The files, links resolved."""
        return {path.resolve().as_posix() for path in self.paths().values()}

    def _text(self, value: Any, place: str) -> str:
        """``value`` if it is a text, else an error that names ``place``."""
        if isinstance(value, str):
            return value
        wrong = f"{place}: {self.column!r} holds {type(value).__name__}, not text"
        raise UserError(self.problem(wrong, "name a column of texts, or mend or remove that row"))


class TextFiles(_Files):
    """``text:GLOB``: one document per file."""

    kind = "text"
    form = "text:GLOB"
    needs_column = False

    def _columns(self, path: Path) -> list[str] | None:
        with _open_binary(path) as file:
            file.read(1)
        return None

    def _read(self, name: str, path: Path) -> Iterator[Document]:
        """The whole file, decoded strictly: a replacement character would train on damaged text."""
        with _open_binary(path) as file:
            raw = file.read()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            wrong = f"{name} is not UTF-8 (byte {error.start})"
            raise UserError(self.problem(wrong, "convert it, for example with iconv -t utf-8")) from error
        yield Document(name, text)


class JsonLines(_Files):
    """``jsonl:GLOB#field``: one JSON object per line."""

    kind = "jsonl"
    form = "jsonl:GLOB#field"

    def _columns(self, path: Path) -> list[str] | None:
        return next((list(record) for _, record in self._records(path.name, path)), None)

    def _records(self, name: str, path: Path) -> Iterator[tuple[str, dict]]:
        """(place, object) of every line that is not blank."""
        with _open_binary(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                place = f"{name}:{number}"
                try:
                    record = json.loads(line)
                except ValueError as error:
                    wrong = f"{place} is not JSON ({error})"
                    raise UserError(self.problem(wrong, "mend or remove that line")) from error
                if not isinstance(record, dict):
                    wrong = f"{place} is a {type(record).__name__}, not an object"
                    raise UserError(self.problem(wrong, "write one JSON object a line"))
                yield place, record

    def _read(self, name: str, path: Path) -> Iterator[Document]:
        """One document per line, named ``file:line``."""
        for place, record in self._records(name, path):
            yield Document(place, self._text(record.get(self.column), place))


class ParquetFiles(_Files):
    """``parquet:GLOB#field``: one document per row; only that column is read."""

    kind = "parquet"
    form = "parquet:GLOB#field"

    def _columns(self, path: Path) -> list[str] | None:
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)

    def _read(self, name: str, path: Path) -> Iterator[Document]:
        """One document per row, named ``file:row`` (rows count from 0)."""
        import pyarrow.parquet

        row = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256, columns=[self.column]):
                for value in batch.column(0).to_pylist():
                    yield Document(f"{name}:{row}", self._text(value, f"{name}:{row}"))
                    row += 1


def _fixed_part(pattern: str) -> Path:
    """The folder above a glob's first wildcard (of a plain path: its folder)."""
    path = Path(pattern)
    parents = [path.parent, *path.parent.parents]
    return next(parent for parent in parents if not glob.has_magic(str(parent)))


def _open_binary(path: Path) -> IO[bytes]:
    """``path`` for reading, decompressed when it is called ``.gz``."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")
