"""``tokens``: token ids as other programs of this field store them, with the borders of documents.

A format's header decides the width of the ids and where documents end; what it does not record must be said, and is
never guessed. Ids are taken as they are: a BOS or EOS that is among them stays, and none is added. The files are
mapped, not copied, where a run streams; otherwise they are written into the cache as other data are.
"""

import glob
import hashlib
import os
import tokenize
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np

from tape_ds.data.sources import token_file, token_headers
from tape_ds.data.sources.base import TokenShard, TokenSource
from tape_ds.data.sources.file_identity import file_identity
from tape_ds.data.sources.token_formats import (
    WIDTHS,
    Bare,
    Datatrove,
    LlmC,
    Megatron,
    Numpy,
    RefusedError,
    TokenFormat,
    TokenOptions,
)
from tape_ds.data.sources.token_shards import INDEX, folder_format
from tape_ds.data.sources.token_table import Border, TokenTable
from tape_ds.errors import Problem, UserError

_MEGATRON = Megatron()
_DATATROVE = Datatrove()
_LLM_C = LlmC()
_NUMPY = Numpy()
_BARE = Bare()
_BESIDE = (".ds.index", ".ds.metadata", ".ds.loss")
# files that messages list
_NAMED = 5
# of a number of 64 bits
_DIGITS = 19
_ENDS = "end=eos (documents end with the tokenizer's EOS), end=ID, begin=ID or end=file (a file is one document)"
# errors that a damaged file, or an index of other contents, raises
_DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    EOFError,
    # of a damaged .csv.gz
    zlib.error,
    # of a header of numpy's that breaks off
    tokenize.TokenError,
)


@dataclass(frozen=True)
class Unit:
    """A file, or a file with its index, that holds rows of ids."""

    # its path below the spec's fixed part
    name: str
    format: TokenFormat
    path: Path


class TokenCorpus(TokenSource):
    """``tokens:PATH[#OPTION&OPTION]``: a file, a glob of files, a prefix of Megatron, or a folder.

    Options: the width of ids without a header (a name of :data:`WIDTHS`), ``end=`` and ``begin=``, ``column=``.
    """

    kind = "tokens"
    form = "tokens:PATH[#WIDTH&end=ID]"
    streamed: ClassVar[bool] = True
    other_ids: ClassVar[str] = (
        "name ids of this model's tokenizer, or tokenise the text again with it; without a header, check the width too"
    )

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        place = self.rest
        given = ""
        if "#" in place:
            place, _, given = place.rpartition("#")
        self.place = place
        self.path = Path(os.path.expanduser(place))
        self.given = given
        self.width: str | None = None
        self.named: dict[str, str] = {}
        self.wrong: list[str] = []
        # nothing after a #, or no # at all
        options = given.split("&") if given else []
        for option in options:
            name, equals, value = option.partition("=")
            if not equals and name in WIDTHS and self.width is None:
                self.width = name
            elif equals and value and name in ("end", "begin", "column") and name not in self.named:
                self.named[name] = value
            else:
                self.wrong.append(option)

    @property
    def options(self) -> TokenOptions:
        return TokenOptions(self.width, self.named.get("column"))

    def check(self) -> list[Problem]:
        """Also look at every header and size."""
        problems = list(self._wrong_options())
        if not self.place or problems:
            return problems or [self.problem("names no file", f"write {self.form}")]
        try:
            units = self.units()
        except UserError as error:
            return error.problems
        for unit in units:
            problems += self._check_unit(unit)
            if len(problems) >= _NAMED:
                break
        return problems

    def _wrong_options(self) -> Iterator[Problem]:
        for option in self.wrong:
            remedy = f"write a width ({', '.join(WIDTHS)}), end=, begin= or column=, each once, joined by &"
            yield self.problem(f"{option!r} is no option of it", remedy)
        if "end" in self.named and "begin" in self.named:
            reason = "end and begin are given, and one of them divides documents"
            yield self.problem(reason, "remove one")
        for name, words in {"end": ("eos", "file"), "begin": ()}.items():
            value = self.named.get(name)
            if value is None or value in words:
                continue
            is_id = value.isascii() and value.isdecimal() and len(value) <= _DIGITS
            if not is_id:
                yield self.problem(f"{name}={value} is no token id", f"write {_ENDS}")

    def _check_unit(self, unit: Unit) -> Iterator[Problem]:
        kind = unit.format
        column = self.named.get("column")
        given = {"width": (self.width, self.width), "column": (column, f"column={column}")}
        for name, (value, written) in given.items():
            if value is not None and name not in kind.takes:
                reason = f"{unit.name} is {kind.name}, which has no {name} to choose"
                yield self.problem(reason, f"remove {written}")
                return
        if kind is _BARE and self.width is None and kind.files(unit.path) == [unit.path]:
            reason = (
                f"{unit.name} has no header that is known, and nothing says how wide its ids are"
            )
            remedy = f"if it holds ids alone, write {self.kind}:{self.path}#uint16&end=eos, or uint32, as they are"
            yield self.problem(reason, remedy)
            return
        try:
            kind.check(unit.path, self.options)
            divides = kind.has_documents(unit.path) or bool(self.named.keys() & {"end", "begin"})
            if not divides and kind.border(unit.path) is None:
                reason = f"{unit.name} is {kind.name}, and nothing says where documents end"
                remedy = f"add {_ENDS}: {self.kind}:{self._with('end=eos')}"
                if kind is _LLM_C:
                    reason = f"{unit.name} is {kind.name}, and its first documents do not begin with its token"
                    whole = f"{self.kind}:{self._with('end=file')}"
                    remedy = (
                        f"add begin=ID, the token that each begins with, or read it as one: {whole}"
                    )
                yield self.problem(reason, remedy)
        except _DAMAGED as error:
            yield self._unreadable(unit.name, error)

    def _with(self, option: str) -> str:
        return f"{self.path}#{'&'.join([*filter(None, [self.given]), option])}"

    def _unreadable(self, name: str, error: BaseException) -> Problem:
        if isinstance(error, RefusedError):
            return self.problem(f"{name}: {error}", error.remedy)
        reason = f"its header or index is damaged ({error!r})"
        # these have a sentence
        if isinstance(error, OSError | ValueError):
            reason = str(error)
        remedy = "repair the file, or leave it out of the glob"
        return self.problem(f"{name} cannot be read: {reason}", remedy)

    def units(self) -> list[Unit]:
        """Return all files in the order of their names; raise :class:`UserError` if there are none, or others."""
        by_path: dict[Path, Unit] = {}
        problems: list[Problem] = []
        for name, path in self._matches():
            try:
                for unit in self._units_of(name, path):
                    by_path.setdefault(unit.path, unit)
            except UserError as error:
                problems += error.problems
            except _DAMAGED as error:
                problems.append(self._unreadable(name or path.name, error))
        if problems:
            raise UserError(problems[:_NAMED])
        return list(by_path.values())

    def _matches(self) -> list[tuple[str, Path]]:
        """Return (name, path) of the files and folders that the spec names, by name; a single folder is "", so that
        names are the same wherever it is copied."""
        place = self.path
        if "://" in str(self.rest):
            reason = "token files are mapped into memory, and a URL cannot be"
            raise UserError(self.problem(reason, "copy them here"))
        if os.path.exists(place):
            return [("" if place.is_dir() else place.name, place)]
        # a prefix of Megatron
        index = f"{place}.idx"
        if place.name and os.path.isfile(index):
            return [(f"{place.name}.idx", Path(index))]
        root = next((parent for parent in place.parents if os.path.isdir(parent)), Path())
        below = str(place.relative_to(root))
        names = glob.glob(below, root_dir=root, recursive=True)
        # prefixes of Megatron
        if not names:
            names = glob.glob(f"{below}.idx", root_dir=root, recursive=True)
        files = []
        for name in sorted(names):
            path = root / name
            if path.is_file() or (path / INDEX).is_file():
                files.append((name, path))
        if not files:
            wrong = "no such file or folder"
            if glob.has_magic(str(place)):
                wrong = "no file matches"
            remedy = f"check the path; relative ones start at {Path.cwd()}"
            raise UserError(self.problem(wrong, remedy))
        return files

    def _units_of(self, name: str, path: Path) -> Iterator[Unit]:
        if not path.is_dir():
            yield self._unit_of_file(name, path)
        elif (path / INDEX).is_file():
            kind = folder_format(path)
            for shard in kind.shards(path):
                yield Unit(_joined(name, shard.relative_to(path).as_posix()), kind, shard)
        else:
            units = []
            for file in sorted(path.iterdir()):
                if file.suffix in (".ds", ".idx", ".bin", ".npy") and file.is_file():
                    units.append(self._unit_of_file(_joined(name, file.name), file))
            kinds = sorted({unit.format.name for unit in units})
            if len(kinds) != 1:
                wrong = f"a folder with token files of {len(kinds)} kinds ({', '.join(kinds)}), and without {INDEX}"
                remedy = f"name files of one kind with a glob, {self.kind}:{self.path}/NAME*.npy for example"
                if not kinds:
                    wrong = f"a folder without token files (.ds, .bin and .idx, .npy) and without {INDEX}"
                    remedy = f"name the folder that holds them, or all below it: {self.kind}:{self.path}/**/*.npy"
                raise UserError(self.problem(wrong, remedy))
            yield from units

    def _unit_of_file(self, name: str, path: Path) -> Unit:
        """Return the file with its format; an index stands for the file that it is of."""
        for beside in _BESIDE:
            if path.name.endswith(beside):
                main = path.with_name(path.name.removesuffix(beside) + ".ds")
                return Unit(_renamed(name, main), _DATATROVE, main)
        if path.name.endswith(".csv.gz"):
            main = path.with_name(path.name.removesuffix(".csv.gz") + ".npy")
            if main.is_file():
                return self._unit_of_file(_renamed(name, main), main)
        index = path.with_suffix(".idx")
        if path.suffix == ".idx" or (path.suffix == ".bin" and index.is_file()):
            return Unit(_renamed(name, path.with_suffix(".bin")), _MEGATRON, index)
        if path.suffix == ".ds":
            return Unit(name, _DATATROVE, path)
        if _has_record(path):
            remedy = f"write {token_file.TokenFile.kind}:{path}"
            raise UserError(
                self.problem(f"{name} is a file of tape-ds prepare-test-set, with a record", remedy)
            )
        if not path.is_file():
            raise ValueError("it is no file")
        with path.open("rb") as file:
            head = file.read(token_headers.HEAD)
        if head.startswith(token_headers.NUMPY):
            return Unit(name, _NUMPY, path)
        if token_headers.llm_c_header(head) is not None:
            return Unit(name, _LLM_C, path)
        other = token_headers.format_of(head, path.stat().st_size)
        if other is not None:
            remedy = "name token ids: of Megatron, datatrove, OLMo, numpy, llm.c, MDS or litdata"
            raise UserError(self.problem(f"{name} is no token file: it begins as {other}", remedy))
        return Unit(name, _BARE, path)

    def _table(self, unit: Unit) -> TokenTable:
        try:
            return _opened(unit.format, unit.path, self.options, _state(unit))
        except _DAMAGED as error:
            raise UserError(self._unreadable(unit.name, error)) from error

    def _border(self, unit: Unit) -> Border | None:
        """Return what divides the rows of a file into documents."""
        end = self.named.get("end")
        if "begin" in self.named:
            return Border(int(self.named["begin"]), begins=True)
        if end == "file":
            return None
        if end == "eos":
            if self.eos is None:
                wrong = "end=eos is given, and the tokenizer has no EOS"
                remedy = "write end=ID with the token that documents end with"
                raise UserError(self.problem(wrong, remedy))
            return Border(self.eos)
        if end is not None:
            return Border(int(end))
        if unit.format.has_documents(unit.path):
            return None
        return unit.format.border(unit.path)

    def _rows(self, unit: Unit, part: int) -> Iterator[tuple[str, np.ndarray]]:
        border = self._border(unit)
        table = self._table(unit)
        if self.named.get("end") == "file":
            table = TokenTable.of_one_row(table.ids)
        for at, ids in table.documents(part, border):
            yield f"{unit.name}@{at}", ids

    def token_shards(self) -> list[TokenShard]:
        shards = []
        for unit in self.units():
            try:
                parts = unit.format.parts(unit.path, self.options)
            except _DAMAGED as error:
                raise UserError(self._unreadable(unit.name, error)) from error
            for part in range(parts):
                name = f"{unit.name}:{part}" if parts > 1 else unit.name
                shards.append(TokenShard(name, self, partial(self._rows, unit, part)))
        return shards

    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        return chain.from_iterable(shard.rows() for shard in self.token_shards())

    def recorded_tokenizer(self) -> str | None:
        return None

    def made_with(self) -> str | None:
        names = {unit.format.tokenizer(unit.path) for unit in self.units()}
        return ", ".join(sorted(name for name in names if name is not None)) or None

    def fingerprint(self) -> str:
        """Hash the options, and names, formats and identities (:func:`file_identity`) of all files and indexes."""
        parts = [self.kind, self.width or ""]
        parts += [f"{name}={value}" for name, value in sorted(self.named.items())]
        for unit in self.units():
            parts.append(f"{unit.name} {unit.format.name}")
            parts += [f"{file.name}={file_identity(file)}" for file in unit.format.files(unit.path)]
        for index in sorted({file for unit in self.units() for file in self._indexes(unit)}):
            parts.append(f"{index.name}={file_identity(index)}")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _indexes(self, unit: Unit) -> Iterator[Path]:
        for folder in (self.path, unit.path.parent):
            if (folder / INDEX).is_file():
                yield (folder / INDEX).resolve()

    def identities(self, split: str) -> set[str]:
        identities = set()
        for unit in self.units():
            for file in unit.format.files(unit.path):
                identities.add(file.resolve().as_posix())
        return identities


def _has_record(path: Path) -> bool:
    try:
        return token_file.read_record(path) is not None
    except (OSError, ValueError):
        # of something else
        return False


@lru_cache(maxsize=4)
def _opened(
    kind: TokenFormat, path: Path, options: TokenOptions, state: tuple[int, ...]
) -> TokenTable:
    """Return an opened file; ``state``, of its files, is only the cache's."""
    return kind.table(path, options)


def _state(unit: Unit) -> tuple[int, ...]:
    state: list[int] = []
    for file in unit.format.files(unit.path):
        status = file.stat()
        state += [status.st_size, status.st_mtime_ns]
    return tuple(state)


def _joined(folder: str, name: str) -> str:
    return "/".join(filter(None, (folder, name)))


def _renamed(name: str, path: Path) -> str:
    """Return a file's name below the fixed part, for another file in its folder."""
    return _joined(name.rpartition("/")[0], path.name)
