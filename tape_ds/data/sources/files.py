"""``text``, ``jsonl`` and ``parquet``: documents in the files that a glob names."""

import glob
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from tape_ds.data import archives
from tape_ds.data.sources import opening
from tape_ds.data.sources.base import UNREADABLE, Document, Shard, Source, file_identity
from tape_ds.data.sources.opening import File, open_binary
from tape_ds.errors import Problem, UserError, did_you_mean

_PEEKED_FILES = 32
_COMPRESSED = (".gz", ".zst", ".parquet")
_REPAIR = "repair the file, or leave it out of the glob"
_CONNECT = "check the address and the network"


class _Files(Source):
    """What the kinds over a glob of files share; a name is the path below the glob's fixed part."""

    needs_column: ClassVar[bool] = True

    def __init__(self, address: str, field: str = "data"):
        super().__init__(address, field)
        self.pattern, _, self.column = self.rest.rpartition("#") if "#" in self.rest else (self.rest, "", "")
        self.remote = opening.is_remote(self.pattern)
        if self.pattern and not self.remote:
            self.pattern = str(Path(self.pattern).expanduser())

    def paths(self) -> dict[str, File]:
        """Name -> file, sorted by name.

        Raises:
            UserError: remote files that cannot be found.
        """
        try:
            found = opening.find(self.pattern)
        except archives.UnsafeArchiveError as error:
            raise UserError(self.problem(str(error), archives.REMEDY)) from error
        except UNREADABLE as error:
            raise UserError(self.problem(f"cannot be looked for: {error}", _CONNECT)) from error
        if self.remote and not found:
            raise UserError(self.problem("no file matches", _CONNECT))
        return found

    def check(self) -> list[Problem]:
        """The glob matches, the column is named, and the first files have it; remote files are not looked for."""
        problems = []
        if self.needs_column and not self.column:
            problems.append(self.problem("no '#field' says which column holds the text", f"write {self.form}"))
        if not self.needs_column and self.column:
            problems.append(self.problem("a text file has no '#field'", f"write {self.form}"))
        if self.remote:
            wrong = opening.unknown_protocol(self.pattern)
            return (
                problems if wrong is None else [*problems, self.problem(wrong, "write for example hf://datasets/...")]
            )
        paths = self.paths() if self.pattern else {}
        if not paths:
            magic = glob.has_magic(self.pattern)
            wrong = "no file matches" if magic else "no such file"
            problems.append(self.problem(wrong, f"check the path; relative ones start at {Path.cwd()}"))
        if not problems:
            for name, path in islice(paths.items(), _PEEKED_FILES):
                problems += self._peek(name, path)
        return problems

    def _peek(self, name: str, path: File) -> list[Problem]:
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
    def _columns(self, path: File) -> list[str] | None:
        """Column names from the head of ``path``; None where the kind has none or the file is empty."""

    def shards(self, split: str) -> list[Shard]:
        """A shard for each file."""
        return [Shard(name, partial(self._shard, name, path)) for name, path in self.paths().items()]

    def _shard(self, name: str, path: File) -> Iterator[Document]:
        remedy = _CONNECT if self.remote else _REPAIR
        return self.reading(self._read(name, path), f"{name} cannot be read", remedy)

    @abstractmethod
    def _read(self, name: str, path: File) -> Iterator[Document]:
        """The documents of one file."""

    def fingerprint(self) -> str:
        """Names, column and the identity of each file's contents (:func:`file_identity`).

        Of remote files the address stands for the contents, as it does for a dataset of the hub: name a revision.
        """
        parts = [self.kind, self.column]
        if self.remote:
            parts.append(self.pattern)
        else:
            parts += [f"{name}={file_identity(path)}" for name, path in self._here().items()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def size(self) -> int | None:
        """Of the files together, where they are here and not compressed."""
        here = self._here().values()
        if self.remote or any(path.suffix in _COMPRESSED for path in here):
            return None
        return sum(path.stat().st_size for path in here)

    def identities(self, split: str) -> set[str]:
        """The files, links resolved; of remote ones the pattern."""
        return {self.pattern} if self.remote else {path.resolve().as_posix() for path in self._here().values()}

    def _here(self) -> dict[str, Path]:
        """The files of this machine."""
        return {name: path for name, path in self.paths().items() if isinstance(path, Path)}

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

    def _columns(self, path: File) -> list[str] | None:
        with open_binary(path) as file:
            file.read(1)
        return None

    def _read(self, name: str, path: File) -> Iterator[Document]:
        """The whole file, decoded strictly: a replacement character would train on damaged text."""
        with open_binary(path) as file:
            raw = file.read()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            wrong = f"{name} is not UTF-8 (byte {error.start})"
            raise UserError(self.problem(wrong, "convert it, for example with iconv -t utf-8")) from error
        yield Document(name, text)


class JsonLines(_Files):
    """``jsonl:GLOB#field[?key=value]``: one JSON object per line, only those whose ``key`` has that value.

    ``key`` may descend, ``meta.pile_set_name``; several conditions are joined by ``&``. A value that is no text is
    written as in JSON.
    """

    kind = "jsonl"
    form = "jsonl:GLOB#field[?key=value]"

    def __init__(self, address: str, field: str = "data"):
        super().__init__(address, field)
        self.column, _, self.condition = self.column.partition("?")
        self.where = [each.partition("=") for each in self.condition.split("&")] if self.condition else []

    def check(self) -> list[Problem]:
        """As for all files, and the condition reads as one."""
        problems = super().check()
        if not all(key and equals for key, equals, _ in self.where):
            problems.append(self.problem(f"{self.condition!r} is no condition", f"write {self.form}"))
        return problems

    def fingerprint(self) -> str:
        """With the condition, where there is one."""
        files = super().fingerprint()
        return hashlib.sha256(f"{files}?{self.condition}".encode()).hexdigest() if self.condition else files

    def _columns(self, path: File) -> list[str] | None:
        return next((list(record) for _, record in self._records(path.name, path)), None)

    def _records(self, name: str, path: File) -> Iterator[tuple[str, dict]]:
        """(place, object) of every line that is not blank."""
        with open_binary(path) as file:
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

    def _wanted(self, record: dict, place: str) -> bool:
        """Whether the conditions hold; a key that is not there is a mistake."""
        for key, _, value in self.where:
            found: Any = record
            for part in key.split("."):
                if not isinstance(found, dict) or part not in found:
                    raise UserError(self.problem(f"{place} has no {key!r}", "name a key that every line has"))
                found = found[part]
            if value != (found if isinstance(found, str) else json.dumps(found)):
                return False
        return True

    def _read(self, name: str, path: File) -> Iterator[Document]:
        """One document per line, named ``file:line``."""
        for place, record in self._records(name, path):
            if self._wanted(record, place):
                yield Document(place, self._text(record.get(self.column), place))


class ParquetFiles(_Files):
    """``parquet:GLOB#field``: one document per row; only that column is read."""

    kind = "parquet"
    form = "parquet:GLOB#field"

    def _columns(self, path: File) -> list[str] | None:
        import pyarrow.parquet

        with open_binary(path) as file:
            return list(pyarrow.parquet.read_schema(file).names)

    def _read(self, name: str, path: File) -> Iterator[Document]:
        """One document per row, named ``file:row`` (rows count from 0)."""
        import pyarrow.parquet

        row = 0
        with open_binary(path) as raw, pyarrow.parquet.ParquetFile(raw) as file:
            for batch in file.iter_batches(batch_size=256, columns=[self.column]):
                for value in batch.column(0).to_pylist():
                    yield Document(f"{name}:{row}", self._text(value, f"{name}:{row}"))
                    row += 1
