"""The interface of all kinds of data specs: :class:`Source`, its :class:`Shard` and its :class:`Document`."""

import lzma
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
from huggingface_hub.errors import HTTPError

from tape_ds import paths, storage
from tape_ds.data.bad_rows import BadRows
from tape_ds.errors import Problem, UserError, did_you_mean

SPLITS = ("train", "heldout")
BY = "&by="
# of texts that are one document
BETWEEN = "\n\n"

Item = TypeVar("Item")

# Errors of reading damaged files: a truncated .gz is EOFError, a flipped byte zlib.error, an encrypted zip
# RuntimeError, an unreachable hub HTTPError, pyarrow's ArrowInvalid a ValueError. UserError is a ValueError too: catch
# it first.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    HTTPError,
)


@dataclass(frozen=True)
class Document:
    name: str
    text: str


@dataclass(frozen=True)
class Shard:
    """A part of a source that is read separately, usually a file. Picklable."""

    # the same in every run over the same data; unique within its source
    name: str
    documents: Callable[[], Iterator[Document]]
    """Read the shard from its beginning, in a fixed order; raises as :meth:`Source.documents`."""


class Source(ABC):
    """The documents of one data spec; ``field`` is the recipe's field that lists it, for messages."""

    kind: ClassVar[str]
    form: ClassVar[str]
    # True: yields token ids through ``token_rows`` instead of ``documents``
    tokenised: ClassVar[bool] = False
    # True: its one document is several documents without a border
    stream: ClassVar[bool] = False

    def __init__(self, spec: str, field: str = "data"):
        self.spec = spec
        self.field = field
        self.rest = spec.partition(":")[2]
        # replaced by readers
        self.bad_rows = BadRows()

    @abstractmethod
    def check(self) -> list[Problem]:
        """Return problems that are visible without reading the data and without the network."""

    @abstractmethod
    def shards(self, split: str) -> list[Shard]:
        """Return the parts of ``split`` (``"train"`` or ``"heldout"``) in the order of :meth:`documents`, unopened."""

    def documents(self, split: str) -> Iterator[Document]:
        """Return the documents of ``split`` in a fixed order, shard by shard."""
        return chain.from_iterable(shard.documents() for shard in self.shards(split))

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash the documents; the key of everything derived from them."""

    @abstractmethod
    def identities(self, split: str) -> set[str]:
        """Return names of what ``split`` reads; sources with a common name read the same data."""

    def reading(self, items: Iterator[Item], wrong: str, remedy: str) -> Iterator[Item]:
        """Yield ``items``; turn the error of a damaged file into a :class:`UserError` with ``wrong`` and ``remedy``."""
        try:
            yield from items
        except GeneratorExit:
            # first: when the interpreter exits, the names below are gone before open readers close
            raise
        except UserError:
            raise
        except UNREADABLE as error:
            raise UserError(self.problem(f"{wrong}: {error}", remedy)) from error

    def leave_out(self, wrong: str, remedy: str) -> None:
        self.bad_rows.add(self.problem(wrong, remedy))

    def problem(self, wrong: str, remedy: str) -> Problem:
        return Problem(self.field, self.spec, wrong, remedy)


class RowSource(Source):
    """Rows with a column of documents, which are text or, for chat, conversations."""

    # its name; `meta.set` is the value of `set` in `meta`
    column: str
    by: str = ""
    """Column whose neighbouring rows of the same value are one document; empty: a row is one."""

    def take_by(self) -> None:
        """Take :attr:`by` from the end of the column, ``content&by=repo``; without a key it stays in the name, which no
        data have."""
        column, _, by = self.column.partition(BY)
        if by:
            self.column = column
            self.by = by

    @abstractmethod
    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name, columns) of every row, in a fixed order."""

    def texts(self, rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Document]:
        """Yield the documents of rows whose column is a text; others are refused or left out. With :attr:`by` the texts
        of neighbouring rows, joined by :data:`BETWEEN`, are one document, which has the first one's name."""
        documents = self._documents_of(rows)
        if not self.by:
            yield from map(itemgetter(1), documents)
            return
        for _, group in groupby(documents, key=itemgetter(0)):
            together = list(map(itemgetter(1), group))
            text = BETWEEN.join(document.text for document in together)
            yield Document(together[0].name, text)

    def _documents_of(
        self, rows: Iterable[tuple[str, dict[str, Any]]]
    ) -> Iterator[tuple[Any, Document]]:
        """Yield the value of :attr:`by` and the document of each row that has a text."""
        for name, row in rows:
            try:
                value = value_of(row, self.column)
            except KeyError:
                # Arrow's rows have no nulls
                value = None
            if isinstance(value, Mapping):
                wrong = f"{name}: {self.column!r} is an object with {', '.join(value)}, not text"
                self.leave_out(wrong, hint(self.column, {self.column: value}))
            elif not isinstance(value, str):
                wrong = f"{name}: {self.column!r} holds {type(value).__name__}, not text"
                remedy = "add the #field of a column of texts, or correct or remove that row"
                self.leave_out(wrong, remedy)
            elif not storage.is_utf8(value):
                # half of a surrogate pair, as "\ud83d" in JSON, cannot be tokenised
                wrong = f"{name}: {self.column!r} is no Unicode text"
                self.leave_out(wrong, "correct or remove that row")
            else:
                try:
                    shared = value_of(row, self.by) if self.by else None
                except KeyError:
                    self.leave_out(f"{name} has no column {self.by!r}", hint(self.by, row))
                    continue
                yield shared, Document(name, value)

    def arrow_rows(
        self, batches: Iterable[pa.RecordBatch | pa.Table], place: str, most: int | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (``place:number``, columns without null values) of at most ``most`` rows; rows that are not UTF-8 are
        refused or left out."""
        number = 0
        for batch in batches:
            column = batch.to_struct_array()
            for index in range(len(column)):
                if number == most:
                    return
                name = f"{place}:{number}"
                number += 1
                try:
                    row = _without_nulls(column[index].as_py())
                except UnicodeDecodeError as error:
                    wrong = f"{name} is not UTF-8 ({error.reason})"
                    self.leave_out(wrong, "correct or remove that row")
                else:
                    yield name, row

    def require_column(self, schema: pa.Schema, where: str) -> None:
        record = _as_record(schema)
        for column in filter(None, (self.column, self.by)):
            try:
                value_of(record, column)
            except KeyError:
                wrong = f"{where} has no column {column!r}"
                raise UserError(self.problem(wrong, hint(column, record))) from None


def value_of(record: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column; a key with dots precedes a nested one."""
    if name in record:
        return record[name]
    head, _, rest = name.partition(".")
    if not rest or not isinstance(record.get(head, 0), Mapping | None):
        raise KeyError(name)
    if record[head] is not None:
        return value_of(record[head], rest)
    return None


def hint(name: str, record: Mapping[str, Any]) -> str:
    """Return a remedy for a column that the record does not have."""

    def names_in(record: Mapping[str, Any]) -> Iterator[str]:
        for key, value in record.items():
            if isinstance(value, Mapping):
                for inner in names_in(value):
                    yield f"{key}.{inner}"
            else:
                yield str(key)

    names = list(names_in(record))
    near = [known for known in names if known.endswith(f".{name}") or known.startswith(f"{name}.")]
    if near:
        return f"did you mean {' or '.join(map(repr, near[:3]))}?"
    return did_you_mean(name, names)


def _as_record(schema: pa.Schema | pa.StructType) -> dict[str, Any]:
    """Return a schema as a record of types; a struct is a mapping."""
    record = {}
    for field in schema:
        record[field.name] = field.type
        if pa.types.is_struct(field.type):
            record[field.name] = _as_record(field.type)
    return record


def _without_nulls(value: Any) -> Any:
    """Return an Arrow value without the keys that other rows have: Arrow gives each mapping those of all rows."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


class TokenSource(Source):
    """Documents that are token ids already, in a file or a folder."""

    tokenised = True
    # True: `token_shards` gives its parts
    streamed: ClassVar[bool] = False
    other_ids: ClassVar[str] = "tokenise the text again with this model's tokenizer"
    """Remedy where ids are not in the vocabulary."""

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.path = paths.of(self.rest)
        # of the tokenizer, where documents end with it; set by readers, as `bad_rows`
        self.eos: int | None = None

    @abstractmethod
    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (name, token ids [n]) of every document, in a fixed order; as :meth:`documents` otherwise."""

    @abstractmethod
    def recorded_tokenizer(self) -> str | None:
        """Return the :func:`tape_ds.data.tokenized.tokenizer_fingerprint` that the data record, if any."""

    def made_with(self) -> str | None:
        """Return the name of the tokenizer that the data record, if any."""
        return None

    def token_shards(self) -> "list[TokenShard]":
        """Return the parts of :meth:`token_rows` in its order, unopened."""
        raise TypeError(f"{self.spec} is not read in parts")

    def shards(self, split: str) -> list[Shard]:
        raise TypeError(f"{self.spec} holds token ids, not text")

    def identities(self, split: str) -> set[str]:
        return {self.path.resolve().as_posix()}


@dataclass(frozen=True)
class TokenShard:
    """A part of a source of token ids that is read separately, as :class:`Shard` is of text. Picklable."""

    name: str
    source: TokenSource
    rows: Callable[[], Iterator[tuple[str, np.ndarray]]]
    """Read its documents, as :meth:`TokenSource.token_rows`."""
