"""What every kind of address has in common: :class:`Document`, the interface :class:`Source`, identity of files."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tape_ds.errors import Problem

SPLITS = ("train", "heldout")

# Below this size a file is hashed (exact, and the same wherever the file is copied); hashing terabytes before every
# run would cost more than the tokenising it saves, so above it size and time of change stand for the contents.
_HASHED_WHOLE = 64 * 2**20


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


def file_identity(path: Path) -> str:
    """What stands for a file's contents: their hash up to 64 MiB, size and time of change above."""
    status = path.stat()
    if status.st_size > _HASHED_WHOLE:
        return f"{status.st_size}@{status.st_mtime_ns}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
