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

from fsspec import get_filesystem_class

from tape_ds import paths, storage
from tape_ds.data.sources import opening
from tape_ds.data.sources.base import BY, UNREADABLE, Document, RowSource, Shard, hint, value_of
from tape_ds.data.sources.file_identity import file_identity
from tape_ds.data.sources.opening import File
from tape_ds.errors import Problem, UserError

_PEEKED_FILES = 32
# bytes of a text that are decoded to check it
_HEAD = 512
FROM_CSV = "make it Parquet: python -c \"import pandas; pandas.read_csv('FILE').to_parquet('NEW.parquet')\""
_MEMBER = "zip://MEMBER::/path/of/FILE.zip"
# first lines of one JSON value over several lines
_LONE_BRACKETS = (b"[", b"{", b"[{")


def _local_archive(pattern: str) -> Path | None:
    """Return the file of this machine that ``zip://MEMBER::PATH``, or ``zip://MEMBER::file://PATH``, names."""
    before, _, last = pattern.rpartition("::")
    protocol, mark, path = last.rpartition("://")
    is_local = "://" in before and path and (not mark or protocol == "file")
    if is_local:
        return paths.of(path).absolute()
    return None


class _Files(RowSource):
    """A glob of files; a file's name is its path below the glob's fixed part."""

    needs_column: ClassVar[bool] = True

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.pattern = self.rest
        self.column = ""
        # the last of them: a path may have one too
        if "#" in self.rest:
            self.pattern, _, self.column = self.rest.rpartition("#")
        self.archive = _local_archive(self.pattern)
        self.remote = "://" in self.pattern and self.archive is None
        self.repair = "check the URL and the network"
        if not self.remote:
            self.repair = "repair the file, or leave it out of the glob"
        if self.archive is not None:
            self.pattern = f"{self.pattern.rpartition('::')[0]}::file://{self.archive}"
        elif self.pattern and not self.remote:
            self.pattern = str(paths.of(self.pattern))

    def files(self) -> dict[str, File]:
        if self.archive is not None and not self.archive.is_file():
            wrong = f"there is no archive {self.archive}"
            remedy = f"check the path; relative ones start at {Path.cwd()}"
            raise UserError(self.problem(wrong, remedy))
        try:
            files = opening.find(self.pattern)
        except UNREADABLE as error:
            raise UserError(self.problem(f"cannot be found: {error}", self.repair)) from error
        if self.remote and not files:
            raise UserError(self.problem("no file matches", self.repair))
        return files

    def check(self) -> list[Problem]:
        """Also look into the first files; remote ones are not searched for."""
        problems = []
        if self.needs_column and not self.column:
            reason = "no '#field' names the column of the text"
            problems.append(self.problem(reason, f"write {self.form}"))
        if not self.needs_column and self.column:
            problems.append(self.problem("a text file has no '#field'", f"write {self.form}"))
        links: list[Problem] = []
        if "://" in self.pattern:
            links = list(self._check_links())
            problems += links
        if self.remote or links:
            return problems

        files: dict[str, File] = {}
        try:
            if self.pattern:
                files = self.files()
        except UserError as error:
            return [*problems, *error.problems]
        if not files:
            reason = "no such file"
            if glob.has_magic(self.pattern):
                reason = "no file matches"
            remedy = f"check the path; relative ones start at {Path.cwd()}, and [[] is a bracket in a name"
            if os.path.isdir(self.pattern):
                reason = "a folder, not a file"
                remedy = f"name its files: {self.kind}:{self.pattern.rstrip('/')}/*"
            problems.append(self.problem(reason, remedy))
        for name in files:
            if not storage.is_utf8(name):
                reason = f"the name of the file {storage.shown(name)} is not UTF-8"
                problems.append(self.problem(reason, "rename it, or leave it out of the glob"))
        # a first problem is enough: no file is opened
        if problems:
            return problems
        for name, file in islice(files.items(), _PEEKED_FILES):
            try:
                next(self._guarded(name, self._rows(name, file, peek=True)), None)
            except UserError as error:
                problems += error.problems
        return problems

    def _check_links(self) -> Iterator[Problem]:
        """Yield what is wrong with the links of a URL, ``zip://MEMBER::URL``, without asking for it."""
        links = self.pattern.split("::")
        for link in links:
            try:
                get_filesystem_class(link.partition("://")[0])
            except (ValueError, ImportError) as error:
                yield self.problem(
                    str(error), f"write for example hf://datasets/NAME/FILE, or {_MEMBER}"
                )
        protocol = links[-1].partition("://")[0]
        if protocol in ("zip", "tar"):
            yield self.problem(f"{protocol}:// names a member of no archive", f"write {_MEMBER}")

    @abstractmethod
    def _rows(
        self, name: str, file: File, *, only: str | None = None, peek: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name, columns) of every row of one file.

        Args:
            only: the column that is needed.
            peek: for the check of a spec, read no more than shows whether the file fits.
        """

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, file in self.files().items():
            yield from self._guarded(name, self._rows(name, file))

    def shards(self, split: str) -> list[Shard]:
        files = self.files().items()
        return [Shard(name, partial(self._documents, name, file)) for name, file in files]

    def _documents(self, name: str, file: File) -> Iterator[Document]:
        # with `by` two columns are read
        only = None if self.by else self.column
        return self.texts(self._guarded(name, self._rows(name, file, only=only)))

    def _guarded(self, name: str, rows: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        return self.reading(rows, f"{name} cannot be read", self.repair)

    def fingerprint(self) -> str:
        """Hash names, column and the identity of each file's contents, of an archive's members that of the archive; of
        remote files the pattern, which should name a revision."""
        files = {} if self.remote else self.files()
        read = []
        try:
            if self.archive is not None:
                read = [*files, f"archive={file_identity(self.archive)}"]
            else:
                for name, file in files.items():
                    read.append(f"{name}={file_identity(Path(file.path))}")
        except OSError as error:
            # a file after those that are looked into
            raise UserError(self.problem(f"cannot be read: {error}", self.repair)) from error
        column = self.column
        if self.by:
            column += f"{BY}{self.by}"
        read = read or [self.pattern]
        return hashlib.sha256("\0".join([self.kind, column, *read]).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        files = {} if self.remote else self.files()
        if self.archive is not None:
            return {f"{self.archive.resolve().as_posix()}::{file.path}" for file in files.values()}
        return {Path(file.path).resolve().as_posix() for file in files.values()} or {self.pattern}


class TextFiles(_Files):
    """``text:GLOB``: one document a file."""

    kind = "text"
    form = "text:GLOB"
    needs_column = False

    def _rows(
        self, name: str, file: File, *, only: str | None = None, peek: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        with file.open() as stream:
            raw = stream.read(_HEAD) if peek else opening.whole(stream)
        try:
            # strictly, since replacement characters would be trained on
            text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw, final=not peek)
        except UnicodeDecodeError as error:
            wrong = f"{name} is not UTF-8 (byte {error.start})"
            remedy = "convert it, for example with iconv -f LATIN1 -t UTF-8 FILE > NEW"
            self.leave_out(wrong, remedy)
        else:
            yield name, {self.column: text}


class PackageText(TextFiles):
    """``package:NAME/FILE``: a text file of an installed package, the same wherever its version is pinned."""

    kind = "package"
    form = "package:NAME/FILE"

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        name, _, inside = self.rest.partition("/")
        package = None
        if name.isidentifier() and name != "__main__":
            package = importlib.util.find_spec(name)
        self.pattern = ""
        # a module of one file has no folder
        if inside and package is not None and package.submodule_search_locations:
            self.pattern = str(Path(package.submodule_search_locations[0], inside))

    def check(self) -> list[Problem]:
        if self.pattern and self.files():
            return super().check()
        remedy = f"write {self.form}, or install the package"
        return [self.problem("no installed package has this file", remedy)]


class JsonLines(_Files):
    """``jsonl:GLOB#field[&by=key][?key=value]``: one JSON object a line, only those whose ``key`` has that value; with
    ``by``, neighbouring lines of the same ``key`` are one document.

    ``field`` and ``key`` may be nested, ``meta.pile_set_name``; several conditions are joined by ``&``. A value that is
    not a text is written as in JSON.
    """

    kind = "jsonl"
    form = "jsonl:GLOB#field[&by=key][?key=value]"

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.column, _, self.condition = self.column.partition("?")
        self.take_by()
        self.where = []
        if self.condition:
            self.where = [part.partition("=") for part in self.condition.split("&")]

    def check(self) -> list[Problem]:
        problems = super().check()
        if not all(key and equals for key, equals, _ in self.where):
            reason = f"{self.condition!r} is not a condition"
            problems.append(self.problem(reason, f"write {self.form}"))
        return problems

    def fingerprint(self) -> str:
        files = super().fingerprint()
        if self.condition:
            return hashlib.sha256(f"{files}?{self.condition}".encode()).hexdigest()
        return files

    def _rows(
        self, name: str, file: File, *, only: str | None = None, peek: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (``file:line``, object) of every line that is not blank and has the column and the values asked for."""
        with file.open() as stream:
            for number, line in enumerate(opening.lines(stream), 1):
                if not line.strip():
                    continue
                place = f"{name}:{number}"
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    record = error
                if not isinstance(record, dict):
                    if number == 1:
                        remedy = _other_form(name, line.strip(), record)
                        if remedy is not None:
                            wrong = f"{name} does not have one JSON object a line"
                            raise UserError(self.problem(wrong, remedy))
                    if isinstance(record, Exception):
                        broken = f"not JSON ({record})"
                    else:
                        broken = f"a {type(record).__name__}"
                    self.leave_out(f"{place} is {broken}", "correct or remove that line")
                    continue
                wanted = True
                try:
                    # a file may have no line of these values
                    for key, _, value in () if peek else self.where:
                        asked = key
                        held = value_of(record, asked)
                        # as JSON has it: true, 3
                        if not isinstance(held, str):
                            held = json.dumps(held)
                        wanted = value == held
                        if not wanted:
                            break
                    if wanted:
                        asked = self.column
                        value_of(record, asked)
                        if self.by:
                            asked = self.by
                            value_of(record, asked)
                except KeyError:
                    self.leave_out(f"{place} has no column {asked!r}", hint(asked, record))
                    continue
                if wanted:
                    yield place, record


def _other_form(name: str, line: bytes, record: Any) -> str | None:
    """Return how to write a file so that it has one object a line, if its first line is of another form."""
    if name.endswith((".csv", ".tsv")):
        return FROM_CSV
    if not isinstance(record, list) and line not in _LONE_BRACKETS:
        return None
    query = "."
    if line.startswith(b"["):
        query = ".[]"
    return f"write it so: jq -c '{query}' {name} > NEW.jsonl"


class ParquetFiles(_Files):
    """``parquet:GLOB#field``: one document a row, named ``file:row`` (from 0); only that column is read."""

    kind = "parquet"
    form = "parquet:GLOB#field[&by=key]"

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.take_by()

    def _rows(
        self, name: str, file: File, *, only: str | None = None, peek: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        # a tenth of a second that --help need not take
        import pyarrow.parquet

        with file.open() as stream, pyarrow.parquet.ParquetFile(stream) as table:
            self.require_column(table.schema_arrow, name)
            opening.check_columns(table.metadata)
            if not peek:
                columns = None if only is None else [only]
                batches = table.iter_batches(batch_size=256, columns=columns)
                yield from self.arrow_rows(batches, name)
