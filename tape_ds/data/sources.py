"""Where text comes from: one small class per kind of address, in a registry.

======================================  ================================================================================
``stdlib``                              sources of the running Python's standard library; :data:`HELD_OUT` never trains
``stdlib:typing.py``                    one of these files, whatever the split
``text:GLOB``                           one document per UTF-8 file (``.gz`` too)
``jsonl:GLOB#field``                    one document per line, its text under ``field`` (``.gz`` too)
``parquet:GLOB#field``                  one document per row of column ``field``
``hub:NAME[@REV][:CONFIG][:SPLIT]``     a dataset of the Hugging Face hub, streamed; ``#field`` if not ``text``;
                                        ``SPLIT`` may end in ``[:N]``, the first N documents
``arrow:DIR``                           a ``datasets`` folder that already holds ``input_ids``
======================================  ================================================================================

Relative globs start at the working directory, ``~`` is the home folder, ``**`` descends. Files are read in the order
of their path below the glob's fixed part, compared by code point, so the order depends on neither machine nor locale.

An address is *parsed* (only its kind can be wrong), then *checked* (cheaply, everything wrong with it at once), and
only then read. ``stdlib`` and ``hub`` know a held-out split of their own; with the other kinds the list in which an
address stands (training or evaluation) says what it is for, and both splits yield all of it.
:func:`check_lists` refuses a document that stands in both lists.
"""

import glob
import gzip
import hashlib
import json
import os
import re
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import numpy as np

from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any

SPLITS = ("train", "heldout")

# Long files (85,000 to 230,000 characters, so 16,384 tokens and more under a usual tokenizer) of different nature, all
# present in every Python from 3.11 on.
HELD_OUT = ("_pydecimal.py", "argparse.py", "doctest.py", "inspect.py", "subprocess.py", "tarfile.py", "typing.py")

# Not documents (generated tables, tests), or parts that distributions leave out, move or patch: with them the same
# Python would give other data on another machine.
# fmt: off
_STDLIB_LEFT_OUT = frozenset((
    "__phello__", "__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "lib-dynload",
    "lib2to3", "msilib", "pydoc_data", "site-packages", "sitecustomize.py", "test", "tests", "tkinter", "turtle.py",
    "turtledemo", "usercustomize.py", "venv",
))
# fmt: on
_STDLIB_LEFT_OUT_PREFIXES = ("_sysconfigdata", "config-")

# Below this size a file is hashed (exact, and the same wherever the file is copied); hashing terabytes before every
# run would cost more than the tokenising it saves, so above it size and time of change stand for the contents.
_HASHED_WHOLE = 64 * 2**20
_PEEKED_FILES = 32


@dataclass(frozen=True)
class Document:
    """One text with the ``name`` under which reports show it."""

    name: str
    text: str


class Source(ABC):
    """Documents behind one address. ``field`` is the recipe's field in which the address stands, for messages."""

    kind: ClassVar[str]
    form: ClassVar[str]
    tokenised: ClassVar[bool] = False  # True: yields token ids through ``token_rows`` instead of ``documents``

    def __init__(self, address: str, field: str = "data"):
        self.address = address
        self.field = field
        self.rest = address.partition(":")[2]

    @abstractmethod
    def check(self) -> list[Problem]:
        """Everything wrong with the address that can be seen without reading the data; no network."""

    @abstractmethod
    def documents(self, split: str) -> Iterator[Document]:
        """Documents of ``split`` (``"train"`` or ``"heldout"``) in a fixed order.

        Raises:
            UserError: naming the place, where the data are not what the address promises.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the documents do; the key of everything derived from them."""

    @abstractmethod
    def identities(self, split: str) -> set[str]:
        """Names of what ``split`` reads, comparable across sources: two that share one read the same data."""

    def problem(self, wrong: str, remedy: str) -> Problem:
        """A :class:`Problem` with this address."""
        return Problem(self.field, self.address, wrong, remedy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


KINDS: dict[str, type[Source]] = {}


def _register(source: type[Source]) -> type[Source]:
    KINDS[source.kind] = source
    return source


def parse(address: str, field: str = "data") -> Source:
    """The :class:`Source` behind ``address``; nothing is opened.

    Raises:
        UserError: the address is not a text or its kind is unknown.
    """
    forms = ", ".join(kind.form for kind in KINDS.values())
    if not isinstance(address, str) or not address.strip():
        raise UserError(Problem(field, address, "not an address of data", f"one of: {forms}"))
    kind = address.partition(":")[0]
    if kind not in KINDS:
        raise UserError(
            Problem(field, address, f"unknown kind of data {kind!r}", f"{did_you_mean(kind, KINDS)} Forms: {forms}")
        )
    return KINDS[kind](address, field)


def parse_all(addresses: Sequence[str], field: str = "data") -> list[Source]:
    """Parse and check a list of addresses.

    Raises:
        UserError: with the problems of all of them.
    """
    problems: list[Problem] = []
    found: list[Source] = []
    if isinstance(addresses, str) or not addresses:
        problems.append(Problem(field, addresses, "not a list of addresses", f"write for example {field}: [stdlib]"))
        addresses = []
    for address in addresses:
        try:
            source = parse(address, field)
        except UserError as error:
            problems += error.problems
            continue
        problems += source.check()
        found.append(source)
    raise_if_any(problems)
    return found


def check_lists(train: Sequence[str], evaluation: Sequence[str]) -> list[Problem]:
    """Problems of ``train_data`` and ``eval_data`` together: each address, and documents that stand in both."""
    problems: list[Problem] = []
    lists: list[list[Source]] = []
    for field, addresses in (("train_data", train), ("eval_data", evaluation)):
        try:
            lists.append(parse_all(addresses, field))
        except UserError as error:
            problems += error.problems
    if problems:
        return problems
    trained = {identity: source for source in lists[0] for identity in source.identities("train")}
    for source in lists[1]:
        shared = sorted(source.identities("heldout") & trained.keys())
        if shared:
            where = trained[shared[0]].address
            shown = ", ".join(shared[:3]) + (" ..." if len(shared) > 3 else "")
            problems.append(
                source.problem(
                    f"also trained on, through {where!r} in train_data: {shown}",
                    "evaluate on other documents, or take these out of train_data",
                )
            )
    return problems


@_register
class StandardLibrary(Source):
    """Real text on every machine: the ``.py`` files of the running Python, without tests and optional parts.

    The selection and its order depend on Python's minor version alone.
    """

    kind = "stdlib"
    form = "stdlib[:FILE]"

    @staticmethod
    def files() -> dict[str, Path]:
        """Relative posix path -> file, sorted; empty where Python comes without its sources."""
        root = sysconfig.get_path("stdlib")
        found = {}
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if _wanted(name)]  # site-packages is larger than all the rest
            for name in names:
                if name.endswith(".py") and _wanted(name):
                    path = Path(folder, name)
                    found[path.relative_to(root).as_posix()] = path
        return dict(sorted(found.items()))

    def _names(self, split: str) -> list[str]:
        if self.rest:
            return [self.rest]
        return [name for name in self.files() if (name in HELD_OUT) == (split == "heldout")]

    def check(self) -> list[Problem]:
        """The sources are there and, if one file is asked for, it is one of them."""
        files = self.files()
        missing = [name for name in HELD_OUT if name not in files]
        if missing:
            return [
                self.problem(
                    f"this Python comes without the sources of its library ({', '.join(missing)} not in "
                    f"{sysconfig.get_path('stdlib')})",
                    "install the full Python (a '-minimal' or zipped one lacks them), or name other data",
                )
            ]
        if ":" in self.address and self.rest not in files:
            return [self.problem("no such file in the standard library", did_you_mean(self.rest, files))]
        return []

    def documents(self, split: str) -> Iterator[Document]:
        """One document per file that is not empty; a file that cannot be read or decoded is left out."""
        files = self.files()
        for name in self._names(split):
            try:
                text = files[name].read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if text.strip():
                yield Document(name, text)

    def fingerprint(self) -> str:
        """Hash of all names and contents (5 MB, milliseconds): patch releases differ in a line here and there."""
        digest = hashlib.sha256()
        for split in SPLITS:
            for document in self.documents(split):
                digest.update(f"{document.name}\0{len(document.text)}\0{document.text}".encode())
        return digest.hexdigest()

    def identities(self, split: str) -> set[str]:
        """One name per file."""
        return {f"stdlib:{name}" for name in self._names(split)}


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
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            return [self.problem(f"{name} cannot be read: {error}", "repair the file, or leave it out of the glob")]
        if columns is None or self.column in columns:
            return []
        return [self.problem(f"{name} has no column {self.column!r}", did_you_mean(self.column, columns))]

    @abstractmethod
    def _columns(self, path: Path) -> list[str] | None:
        """Column names from the head of ``path``; None where the kind has none or the file is empty."""

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


@_register
class TextFiles(_Files):
    """``text:GLOB``: one document per file."""

    kind = "text"
    form = "text:GLOB"
    needs_column = False

    def _columns(self, path: Path) -> list[str] | None:
        with _open_binary(path) as file:
            file.read(1)
        return None

    def documents(self, split: str) -> Iterator[Document]:
        """One document per file, decoded strictly: a replacement character would train on damaged text."""
        for name, path in self.paths().items():
            with _open_binary(path) as file:
                raw = file.read()
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                wrong = f"{name} is not UTF-8 (byte {error.start})"
                raise UserError(self.problem(wrong, "convert it, for example with iconv -t utf-8")) from error
            yield Document(name, text)


@_register
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

    def documents(self, split: str) -> Iterator[Document]:
        """One document per line, named ``file:line``."""
        for name, path in self.paths().items():
            for place, record in self._records(name, path):
                yield Document(place, self._text(record.get(self.column), place))


@_register
class ParquetFiles(_Files):
    """``parquet:GLOB#field``: one document per row; only that column is read."""

    kind = "parquet"
    form = "parquet:GLOB#field"

    def _columns(self, path: Path) -> list[str] | None:
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)

    def documents(self, split: str) -> Iterator[Document]:
        """One document per row, named ``file:row`` (rows count from 0)."""
        import pyarrow.parquet

        for name, path in self.paths().items():
            row = 0
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=256, columns=[self.column]):
                    for value in batch.column(0).to_pylist():
                        yield Document(f"{name}:{row}", self._text(value, f"{name}:{row}"))
                        row += 1


@_register
class HubDataset(Source):
    """``hub:NAME[@REV][:CONFIG][:SPLIT]``: streamed from the hub; its code is never run.

    Without SPLIT, training reads ``train`` and evaluation ``validation``. ``SPLIT[:N]`` stops after N documents, which
    a corpus larger than the disk needs. A dataset that still is a loading script can often be had from its converted
    branch, ``@refs/convert/parquet``.
    """

    kind = "hub"
    form = "hub:NAME[@REV][:CONFIG][:SPLIT][#field]"

    _ADDRESS = re.compile(
        r"(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^:#]+))?(:(?P<config>[^:\[#]*))?"
        r"(:(?P<split>\w+)(\[:(?P<first>\d+)\])?)?(#(?P<column>.+))?"
    )
    _SPLIT_OF: ClassVar[dict[str, str]] = {"train": "train", "heldout": "validation"}

    def __init__(self, address: str, field: str = "data"):
        super().__init__(address, field)
        match = self._ADDRESS.fullmatch(self.rest)
        parts = match.groupdict() if match else {}
        self.name: str | None = parts.get("name")
        self.revision: str | None = parts.get("revision")
        self.config: str | None = parts.get("config") or None
        self.split: str | None = parts.get("split")
        self.first: int | None = int(parts["first"]) if parts.get("first") else None
        self.column: str = parts.get("column") or "text"

    def check(self) -> list[Problem]:
        """The address reads as one of a hub dataset; whether it exists is only known online."""
        if self.name is None:
            example = "hub:allenai/c4:en:train[:20000]"
            return [self.problem("not an address of a hub dataset", f"write {self.form}, for example {example}")]
        if self.split is None and self.config in {"train", "test", "validation"}:
            return [
                self.problem(
                    f"{self.config!r} stands in the place of the configuration",
                    f"if it is the split, write {self.address.replace(':' + self.config, '::' + self.config)}",
                )
            ]
        if self.first == 0:
            return [self.problem("no documents are asked for", "write [:N] with N of 1 or more")]
        return []

    def documents(self, split: str) -> Iterator[Document]:
        """Streamed documents, named ``dataset:split:number``."""
        wanted = self.split or self._SPLIT_OF[split]
        for number, row in enumerate(islice(self._stream(wanted), self.first)):
            place = f"{self.name}:{wanted}:{number}"
            if self.column not in row:
                wrong = f"the dataset has no column {self.column!r}"
                raise UserError(self.problem(wrong, f"add #field: {did_you_mean(self.column, row)}"))
            if not isinstance(row[self.column], str):
                wrong = f"{place}: {self.column!r} holds {type(row[self.column]).__name__}, not text"
                raise UserError(self.problem(wrong, "add the #field of a column of texts"))
            yield Document(place, row[self.column])

    def _stream(self, split: str) -> Iterable[dict]:
        import datasets

        try:
            return datasets.load_dataset(self.name, self.config, split=split, revision=self.revision, streaming=True)
        except (datasets.exceptions.DatasetNotFoundError, OSError, RuntimeError, ValueError) as error:
            # Unknown names, configurations and splits, loading scripts and a missing network all end here; the
            # library's sentence says which.
            remedy = "check name, configuration, split and network; a loading script: try @refs/convert/parquet"
            raise UserError(self.problem(f"the hub dataset does not open: {error}", remedy)) from error

    def fingerprint(self) -> str:
        """Hash of the address's parts: knowing the contents would take the network on every start.

        Name a commit (``@REV``) to bind the address to its contents.
        """
        parts = (self.name, self.revision, self.config, self.split, self.first, self.column)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        """Dataset, configuration and split."""
        return {f"hub:{self.name}:{self.config or ''}:{self.split or self._SPLIT_OF[split]}"}


@_register
class ArrowFolder(Source):
    """``arrow:DIR``: written by ``Dataset.save_to_disk``, with a column ``input_ids`` (and perhaps ``name``)."""

    kind = "arrow"
    form = "arrow:DIR"
    tokenised = True

    def __init__(self, address: str, field: str = "data"):
        super().__init__(address, field)
        self.folder = Path(self.rest).expanduser()

    def check(self) -> list[Problem]:
        """The folder is one dataset and has ``input_ids``."""
        if not self.rest or not self.folder.is_dir():
            return [self.problem("no such folder", f"check the path; relative ones start at {Path.cwd()}")]
        if (self.folder / "dataset_dict.json").is_file():
            splits = [child.name for child in sorted(self.folder.iterdir()) if child.is_dir()]
            return [
                self.problem(
                    "a folder of several splits", f"name one: {self.address.rstrip('/')}/{(splits or ['SPLIT'])[0]}"
                )
            ]
        try:
            info = json.loads((self.folder / "dataset_info.json").read_text(encoding="utf-8"))
            columns = dict(info["features"])
            json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [self.problem(f"not a saved dataset ({error!r})", "write it with datasets' save_to_disk")]
        if "input_ids" not in columns:
            remedy = f"tokenise it first; its columns are {', '.join(columns)}"
            return [self.problem("the dataset has no column 'input_ids'", remedy)]
        if not _is_integer_list(columns["input_ids"]):
            return [self.problem("'input_ids' is not a list of integers", "store token ids, one list a document")]
        return []

    def documents(self, split: str) -> Iterator[Document]:
        """Refused: there is no text here (``TypeError``)."""
        raise TypeError(f"{self.address} holds token ids, not text; read it through packing.tokenize")

    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, token ids [n]) of every row; rows without a name are named ``folder:number``.

        Raises:
            UserError: a row without ids, or with a null among them.
        """
        import datasets

        number = 0
        dataset = datasets.load_from_disk(str(self.folder)).with_format("arrow")
        for batch in dataset.iter(batch_size=64):
            rows = batch.column("input_ids").combine_chunks()
            names = batch.column("name").to_pylist() if "name" in batch.column_names else [None] * len(rows)
            for name, row in zip(names, rows, strict=True):
                name = str(name) if name is not None else f"{self.folder.name}:{number}"
                if not row.is_valid or row.values.null_count:
                    raise UserError(self.problem(f"{name} has a null for a token id", "write the folder anew"))
                yield name, row.values.to_numpy()
                number += 1

    def fingerprint(self) -> str:
        """Identity of every file of the folder (:func:`file_identity`)."""
        files = sorted(path for path in self.folder.iterdir() if path.suffix in {".arrow", ".json"})
        parts = [f"{path.name}={file_identity(path)}" for path in files]
        return hashlib.sha256("\0".join([self.kind, *parts]).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        """The folder, links resolved."""
        return {self.folder.resolve().as_posix()}


def file_identity(path: Path) -> str:
    """What stands for a file's contents: their hash up to 64 MiB, size and time of change above."""
    status = path.stat()
    if status.st_size > _HASHED_WHOLE:
        return f"{status.st_size}@{status.st_mtime_ns}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_integer_list(feature: Any) -> bool:
    """Whether a feature of ``dataset_info.json`` is a list of integers (written as a list by older ``datasets``)."""
    inner = feature[0] if isinstance(feature, list) and feature else feature
    inner = inner.get("feature", inner) if isinstance(inner, dict) else {}
    listed = inner is not feature
    return listed and isinstance(inner, dict) and str(inner.get("dtype")).startswith(("int", "uint"))


def _wanted(name: str) -> bool:
    """Whether a file or folder of the standard library belongs to the documents."""
    return name not in _STDLIB_LEFT_OUT and not name.startswith(_STDLIB_LEFT_OUT_PREFIXES)


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
