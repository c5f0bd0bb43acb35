"""What every kind of data spec has in common: :class:`Document`, :class:`Shard`, the interface :class:`Source`."""

import lzma
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from huggingface_hub.errors import HTTPError  # of the library that the hub's client is made with

from tape_ds import storage
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.sources import columns
from tape_ds.errors import Problem, UserError

SPLITS = ("train", "heldout")

Item = TypeVar("Item")

UNREADABLE = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, HTTPError)
"""What reading a damaged file raises: a cut ``.gz`` EOFError, a flipped byte zlib.error, a hub that does not answer
HTTPError, and pyarrow's ArrowInvalid is a ValueError (a UserError too: let that pass first)."""

_dated: ContextVar[bool] = ContextVar("_dated", default=False)


@dataclass(frozen=True)
class Document:
    """One text with the ``name`` under which reports show it."""

    name: str
    text: str


@dataclass(frozen=True)
class Shard:
    """A part of a source that is read on its own: a file, or what its kind has for one. Picklable."""

    name: str
    """The same in every run over the same data; unique within its source."""
    documents: Callable[[], Iterator[Document]]
    """Reads the shard from its beginning, in a fixed order; raises what :meth:`Source.documents` raises."""


class Source(ABC):
    """Documents behind one data spec. ``field`` is the recipe's field in which the spec stands, for messages."""

    kind: ClassVar[str]
    form: ClassVar[str]
    tokenised: ClassVar[bool] = False  # True: yields token ids through ``token_rows`` instead of ``documents``
    stream: ClassVar[bool] = False  # True: its one document is several, one after another without a border

    def __init__(self, spec: str, field: str = "data"):
        self.spec = spec
        self.field = field
        self.rest = spec.partition(":")[2]
        self.bad_rows = BadRows()
        """What happens to rows that cannot be read; readers put their own here."""

    @abstractmethod
    def check(self) -> list[Problem]:
        """Return everything wrong with the spec that can be seen without reading the data; no network."""

    @abstractmethod
    def shards(self, split: str) -> list[Shard]:
        """Return the parts of ``split`` (``"train"`` or ``"heldout"``), in the order of :meth:`documents`; none is
        opened.

        Raises:
            UserError: what has to be asked for them (the hub) does not answer.
        """

    def documents(self, split: str) -> Iterator[Document]:
        """Return documents of ``split`` in a fixed order: those of its shards, one after another.

        Raises:
            UserError: naming the place, where the data are not what the spec promises.
        """
        return chain.from_iterable(shard.documents() for shard in self.shards(split))

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the documents do; the key of everything derived from them."""

    @abstractmethod
    def identities(self, split: str) -> set[str]:
        """Return names of what ``split`` reads, comparable across sources: two that share one read the same data."""

    def reading(self, items: Iterator[Item], wrong: str, remedy: str) -> Iterator[Item]:
        """``items``; where a damaged file ends them, a :class:`UserError` of ``wrong``, the reason and ``remedy``."""
        try:
            yield from items
        except GeneratorExit:  # first: at the interpreter's end the names below are gone, and open readers still close
            raise
        except UserError:
            raise
        except UNREADABLE as error:
            raise UserError(self.unreadable(wrong, error, remedy)) from error

    def unreadable(self, wrong: str, error: BaseException, remedy: str) -> Problem:
        """A problem with the reason why something cannot be read, and that reason's own remedy if it has one."""
        return self.problem(f"{wrong}: {error}", getattr(error, "remedy", remedy))

    def leave_out(self, wrong: str, remedy: str) -> None:
        """Leave a row out that cannot be read, or refuse it.

        Raises:
            UserError: no more rows may be left out.
        """
        self.bad_rows.add(self.problem(wrong, remedy))

    def problem(self, wrong: str, remedy: str) -> Problem:
        """A :class:`Problem` with this spec."""
        return Problem(self.field, self.spec, wrong, remedy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"


class RowSource(Source):
    """What holds rows with a column for the documents, which other readers may want of another kind than text."""

    column: str

    @abstractmethod
    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name of the row, all its columns) of every row, in a fixed order.

        Raises:
            UserError: the data cannot be read.
        """

    def texts(self, rows: Iterable[tuple[str, Any]]) -> Iterator[Document]:
        """Yield the documents of rows whose value is a text; the others are refused or left out."""
        for name, value in rows:
            if isinstance(value, Mapping):
                wrong = f"{name}: {self.column!r} is an object with {', '.join(value)}, not text"
                self.leave_out(wrong, columns.hint(self.column, {self.column: value}))
            elif isinstance(value, UnicodeDecodeError):
                self.leave_out(f"{name}: {self.column!r} is not UTF-8 ({value.reason})", "mend or remove that row")
            elif not isinstance(value, str):
                wrong = f"{name}: {self.column!r} holds {type(value).__name__}, not text"
                self.leave_out(wrong, "add the #field of a column of texts, or mend or remove that row")
            elif not storage.is_utf8(value):  # no tokenizer takes half of a character, as "\ud83d" in JSON
                self.leave_out(f"{name}: {self.column!r} is no Unicode text", "mend or remove that row")
            else:
                yield Document(name, value)

    def of_arrow(self, rows: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield rows that Arrow has read, without what is null; those that are not UTF-8 are refused or left out."""
        for name, row in rows:
            if isinstance(row, UnicodeDecodeError):
                self.leave_out(f"{name} is not UTF-8 ({row.reason})", "mend or remove that row")
            else:
                yield name, _without_nulls(row)


class TokenSource(Source):
    """What holds token ids already, each document's under one tokenizer."""

    tokenised = True

    @abstractmethod
    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, token ids [n]) of every document, in a fixed order.

        Raises:
            UserError: the data are not what the spec promises.
        """

    @abstractmethod
    def check_tokenizer(self, identity: str) -> list[Problem]:
        """Whether the ids are those of this tokenizer (:func:`tape_ds.data.tokenized.tokenizer_fingerprint`), as far as
        the data say whose they are."""

    def shards(self, split: str) -> list[Shard]:
        """Refused, and so are documents: there is no text here (``TypeError``)."""
        raise TypeError(f"{self.spec} holds token ids, not text; read it through packing.tokenize")


OTHER_TOKENIZER = (
    "its token ids are those of another tokenizer",
    "prepare the text anew with this model's tokenizer, or give the model the tokenizer it was made with",
)
"""What is wrong with such data, and the remedy."""


def _without_nulls(value: Any) -> Any:
    """Return what Arrow read without the keys that are null, at every depth: it gives each row the keys of all."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def file_identity(path: Path) -> str:
    """Return the identity of a file's contents, see :func:`tape_ds.storage.content_identity`."""
    status = path.stat()
    if _dated.get() and status.st_size > storage.HASHED_WHOLE:
        return f"{status.st_size}@{status.st_mtime_ns}"
    return storage.content_identity(path)


@contextmanager
def dated_identities() -> Iterator[None]:
    """Identify large files by size and time of change, as older checkpoints and caches do: those of data that were not
    touched since are recognised by it."""
    token = _dated.set(True)
    try:
        yield
    finally:
        _dated.reset(token)
