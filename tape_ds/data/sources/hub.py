"""``hub``: a dataset of the Hugging Face hub, streamed."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import ClassVar

from tape_ds.data.sources.base import Document, Source
from tape_ds.errors import Problem, UserError, did_you_mean


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
