"""``text``, ``jsonl`` and ``parquet``: documents in the files of a glob.

The readers of ``datasets`` differ. Its ``text`` converts every line break to a line feed; its ``json`` takes the
columns of the first block for those of all files, converts texts that look like dates, and does not name the line that
is broken.
"""

import codecs
import glob
import hashlib
import importlib.util
import json
import os
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow

from tape_ds import paths, storage
from tape_ds.data.sources import columns, opening
from tape_ds.data.sources.base import UNREADABLE, Document, RowSource, Shard, file_identity
from tape_ds.data.sources.opening import File
from tape_ds.errors import Problem, UserError

_PEEKED_FILES = 32
_HEAD = 512  # bytes of a text that are decoded to check it
FROM_CSV = "make it Parquet: python -c \"import pandas; pandas.read_csv('FILE').to_parquet('NEW.parquet')\""
_LONE_BRACKETS = (b"[", b"{", b"[{")  # first lines of one JSON value over several lines
_REPAIR = "repair the file, or leave it out of the glob"
_CONNECT = "check the URL and the network"


class _Files(RowSource):
    """A glob of files; a file's name is its path below the glob's fixed part."""

    needs_column: ClassVar[bool] = True

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.pattern, _, self.column = self.rest.rpartition("#") if "#" in self.rest else (self.rest, "", "")
        self.remote = opening.is_remote(self.pattern)
        if self.pattern and not self.remote:
            self.pattern = str(paths.of(self.pattern))

    def files(self) -> dict[str, File]:
        try:
            found = opening.find(self.pattern)
        except UNREADABLE as error:
            raise UserError(self.unreadable("cannot be found", error, _CONNECT)) from error
        if self.remote and not found:
            raise UserError(self.problem("no file matches", _CONNECT))
        return found

    def check(self) -> list[Problem]:
        """Also look into the first files; remote ones are not searched for."""
        problems = []
        if self.needs_column and not self.column:
            problems.append(self.problem("no '#field' names the column of the text", f"write {self.form}"))
        if not self.needs_column and self.column:
            problems.append(self.problem("a text file has no '#field'", f"write {self.form}"))
        if self.remote:
            if wrong := opening.unknown_protocol(self.pattern):
                problems.append(self.problem(wrong, "write for example hf://datasets/..."))
            return problems
        files = self.files() if self.pattern else {}
        if not files:
            remedy = f"check the path; relative ones start at {Path.cwd()}"
            wrong = "no file matches" if glob.has_magic(self.pattern) else "no such file"
            if os.path.isdir(self.pattern):
                folder = self.pattern.rstrip("/")
                wrong, remedy = "a folder, not a file", f"name its files, for example {self.kind}:{folder}/*"
            elif "[" in self.pattern:
                remedy += "; [ ] matches one of the characters in it: write [[] for a bracket in a name"
            problems.append(self.problem(wrong, remedy))
        for name in files:
            if not storage.is_utf8(name):
                wrong = f"the name of the file {storage.shown(name)} is not UTF-8"
                problems.append(self.problem(wrong, "rename it, or leave it out of the glob"))
        if not problems:
            for name, file in islice(files.items(), _PEEKED_FILES):
                try:
                    self._look_into(name, file)
                except UserError as error:
                    problems += error.problems
                except UNREADABLE as error:
                    problems.append(self.unreadable(f"{name} cannot be read", error, _REPAIR))
        return problems

    @abstractmethod
    def _look_into(self, name: str, file: File) -> None:
        """Read the head of a file; raise UserError if it does not fit the spec."""

    @abstractmethod
    def _values(self, name: str, file: File) -> Iterator[tuple[str, Any]]:
        """Yield (name, value of the column) of every row of one file."""

    def _rows(self, name: str, file: File) -> Iterator[tuple[str, dict[str, Any]]]:
        raise TypeError(f"{self.spec} has no columns")

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, file in self.files().items():
            yield from self._guarded(name, self._rows(name, file))

    def shards(self, split: str) -> list[Shard]:
        return [Shard(name, partial(self._documents, name, file)) for name, file in self.files().items()]

    def _documents(self, name: str, file: File) -> Iterator[Document]:
        return self.texts(self._guarded(name, self._values(name, file)))

    def _guarded(self, name: str, items: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        return self.reading(items, f"{name} cannot be read", _CONNECT if self.remote else _REPAIR)

    def fingerprint(self) -> str:
        """Hash names, column and the identity of each file's contents; of remote files the pattern, which should name a
        revision."""
        files = {} if self.remote else self.files()
        try:
            read = [f"{name}={file_identity(Path(file.path))}" for name, file in files.items()] or [self.pattern]
        except OSError as error:  # a file after those that are looked into
            raise UserError(self.problem(f"cannot be read: {error}", _REPAIR)) from error
        return hashlib.sha256("\0".join([self.kind, self.column, *read]).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        files = {} if self.remote else self.files()
        return {Path(file.path).resolve().as_posix() for file in files.values()} or {self.pattern}


class TextFiles(_Files):
    """``text:GLOB``: one document a file."""

    kind = "text"
    form = "text:GLOB"
    needs_column = False

    def _look_into(self, name: str, file: File) -> None:
        with file.open() as stream:
            self._decode(name, stream.read(_HEAD), whole=False)

    def _values(self, name: str, file: File) -> Iterator[tuple[str, Any]]:
        with file.open() as stream:
            text = self._decode(name, stream.read())
        if text is not None:
            yield name, text

    def _decode(self, name: str, raw: bytes, whole: bool = True) -> str | None:
        """Decode a text or its head; strictly, since replacement characters would be trained on."""
        try:
            return codecs.getincrementaldecoder("utf-8-sig")().decode(raw, whole)
        except UnicodeDecodeError as error:
            wrong = f"{name} is not UTF-8 (byte {error.start})"
            self.leave_out(wrong, "convert it, for example with iconv -f LATIN1 -t UTF-8 FILE > NEW")
            return None


class PackageText(TextFiles):
    """``package:NAME/FILE``: a text file of an installed package, the same wherever its version is pinned."""

    kind = "package"
    form = "package:NAME/FILE"

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        name, _, inside = self.rest.partition("/")
        found = importlib.util.find_spec(name) if name.isidentifier() and name != "__main__" else None
        folders = list(found.submodule_search_locations or ()) if found is not None and inside else []
        self.pattern = str(Path(folders[0], inside)) if folders else ""

    def check(self) -> list[Problem]:
        if self.pattern and self.files():
            return super().check()
        return [self.problem("no installed package has this file", f"write {self.form}, or install the package")]


class JsonLines(_Files):
    """``jsonl:GLOB#field[?key=value]``: one JSON object a line, only those whose ``key`` has that value.

    ``field`` and ``key`` may be nested, ``meta.pile_set_name``; several conditions are joined by ``&``. A value that is
    not a text is written as in JSON.
    """

    kind = "jsonl"
    form = "jsonl:GLOB#field[?key=value]"

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.column, _, self.condition = self.column.partition("?")
        self.where = [each.partition("=") for each in self.condition.split("&")] if self.condition else []

    def check(self) -> list[Problem]:
        problems = super().check()
        if not all(key and equals for key, equals, _ in self.where):
            problems.append(self.problem(f"{self.condition!r} is not a condition", f"write {self.form}"))
        return problems

    def fingerprint(self) -> str:
        files = super().fingerprint()
        return hashlib.sha256(f"{files}?{self.condition}".encode()).hexdigest() if self.condition else files

    def _look_into(self, name: str, file: File) -> None:
        next(self._rows(name, file, every=True), None)

    def _values(self, name: str, file: File) -> Iterator[tuple[str, Any]]:
        return ((place, columns.value_of(record, self.column)) for place, record in self._rows(name, file))

    def _rows(self, name: str, file: File, every: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        for place, record in self._records(name, file):
            if every or self._wanted(place, record):
                try:
                    columns.value_of(record, self.column)
                except KeyError:
                    hint = columns.hint(self.column, record)
                    self.leave_out(f"{place} has no column {self.column!r}", hint)
                else:
                    yield place, record

    def _records(self, name: str, file: File) -> Iterator[tuple[str, dict]]:
        """Yield (``file:line``, object) of every line that is not blank."""
        with file.open() as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                place = f"{name}:{number}"
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if name.endswith((".csv", ".tsv")):
                        raise UserError(self.problem(f"{name} is a table as text, not JSON", FROM_CSV)) from error
                    record = error
                if isinstance(record, dict):
                    yield place, record
                elif number == 1 and (isinstance(record, list) or line.strip() in _LONE_BRACKETS):
                    kind, query = ("array", ".[]") if line.strip().startswith(b"[") else ("object", ".")
                    wrong = f"{name} is one JSON {kind}, not one object a line"
                    raise UserError(self.problem(wrong, f"write it so: jq -c '{query}' {name} > NEW.jsonl"))
                elif isinstance(record, Exception):
                    self.leave_out(f"{place} is not JSON ({record})", "correct or remove that line")
                else:
                    wrong = f"{place} is a {type(record).__name__}, not an object"
                    self.leave_out(wrong, "write one JSON object a line")

    def _wanted(self, place: str, record: dict) -> bool:
        for key, _, value in self.where:
            try:
                found = columns.value_of(record, key)
            except KeyError:
                self.leave_out(f"{place} has no {key!r}", "name a key that every line has")
                return False
            if value != (found if isinstance(found, str) else json.dumps(found)):
                return False
        return True


class ParquetFiles(_Files):
    """``parquet:GLOB#field``: one document a row, named ``file:row`` (from 0); only that column is read."""

    kind = "parquet"
    form = "parquet:GLOB#field"

    def _look_into(self, name: str, file: File) -> None:
        import pyarrow.parquet  # a tenth of a second that --help need not take

        with file.open(is_text=False) as stream:
            self._require_column(name, pyarrow.parquet.read_schema(stream))

    def _require_column(self, name: str, schema: pyarrow.Schema) -> None:
        record = columns.as_record(schema)
        try:
            columns.value_of(record, self.column)
        except KeyError:
            hint = columns.hint(self.column, record)
            raise UserError(self.problem(f"{name} has no column {self.column!r}", hint)) from None

    def _values(self, name: str, file: File) -> Iterator[tuple[str, Any]]:
        batches = self._batches(name, file, [self.column])
        values = (value for batch in batches for value in columns.python_values(batch, self.column))
        for row, value in enumerate(values):
            yield f"{name}:{row}", value

    def _rows(self, name: str, file: File) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = (row for batch in self._batches(name, file, None) for row in columns.python_values(batch))
        return self.of_arrow((f"{name}:{number}", row) for number, row in enumerate(rows))

    def _batches(self, name: str, file: File, read: list[str] | None) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow.parquet

        with file.open(is_text=False) as stream, pyarrow.parquet.ParquetFile(stream) as table:
            self._require_column(name, table.schema_arrow)  # for files that check() did not look into
            yield from table.iter_batches(batch_size=256, columns=read)
