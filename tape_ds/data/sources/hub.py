"""``hub``: a dataset of the Hugging Face hub, streamed."""

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow

from tape_ds.data.sources.base import UNREADABLE, Document, RowSource, Shard
from tape_ds.errors import Problem, UserError
from tape_ds.models.files.hub import ID

if TYPE_CHECKING:
    from datasets import IterableDataset

# Rows per step of the stream; a column of that many texts is held at once.
_BATCH = 256


class HubDataset(RowSource):
    """``hub:NAME[@REV][:CONFIG][:SPLIT]``: streamed from the hub; its code is never run.

    Without SPLIT, training reads ``train`` and evaluation ``validation``. ``SPLIT[:N]`` stops after N documents, for a
    corpus larger than the disk. A dataset with a loading script often has a converted branch,
    ``@refs/convert/parquet``.
    """

    kind = "hub"
    form = "hub:NAME[@REV][:CONFIG][:SPLIT][#field[&by=key]]"

    _SPEC = re.compile(
        ID
        + r"(:(?P<config>[^:\[#]*))?(:(?P<split>\w+)(\[:(?P<first>[1-9]\d*)\])?)?(#(?P<column>.+))?"
    )
    _SPLIT_OF: ClassVar[dict[str, str]] = {"train": "train", "heldout": "validation"}

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        match = self._SPEC.fullmatch(self.rest)
        parts = match.groupdict() if match else {}
        self.name: str | None = parts.get("name")
        self.revision: str | None = parts.get("revision")
        self.config: str | None = parts.get("config") or None
        self.split: str | None = parts.get("split")
        self.first: int | None = int(parts["first"]) if parts.get("first") else None
        self.column: str = parts.get("column") or "text"
        self.take_by()

    def check(self) -> list[Problem]:
        if self.name is not None:
            return []
        remedy = f"write {self.form}, for example hub:allenai/c4:en:train[:20000]"
        return [self.problem("not the data spec of a hub dataset", remedy)]

    def shards(self, split: str) -> list[Shard]:
        """Return the dataset's shards (C4: 1,024 files), documents named ``dataset:split:shard:number``."""
        whole, place = self._open(split)
        # one, since the end of the N documents is only known by reading
        if self.first is not None:
            return [Shard(place, partial(self._read, whole, 1, 0, place))]
        count = whole.num_shards
        names = (f"{place}:{index}" for index in range(count))
        return [
            Shard(name, partial(self._read, whole, count, index, name))
            for index, name in enumerate(names)
        ]

    def documents(self, split: str) -> Iterator[Document]:
        whole, place = self._open(split)
        return self._read(whole, 1, 0, place)

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        whole, place = self._open(split)
        return self._rows(whole, place)

    def _read(
        self, whole: "IterableDataset", count: int, index: int, place: str
    ) -> Iterator[Document]:
        # a new object for each reading: the library's objects keep their place, which two readings would share
        only = None if self.by else self.column
        return self.texts(self._rows(whole.shard(num_shards=count, index=index), place, only=only))

    def _rows(
        self, part: "IterableDataset", place: str, only: str | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name, columns) of at most ``[:N]`` rows; with ``only``, no other column is converted to Python."""

        def batches() -> Iterator[pyarrow.Table]:
            # iter(batch_size): plain iteration inside a DataLoader's worker would read only that worker's part
            for batch in part.with_format("arrow").iter(batch_size=_BATCH):
                self.require_column(batch.schema, "the dataset")
                if only is not None:
                    batch = batch.select(
                        [only if only in batch.column_names else only.partition(".")[0]]
                    )
                yield batch

        remedy = "check the network; a run resumes from its newest checkpoint"
        return self.reading(
            self.arrow_rows(batches(), place, self.first), f"{place}: the stream broke off", remedy
        )

    def _open(self, split: str) -> tuple["IterableDataset", str]:
        import datasets

        wanted = self.split or self._SPLIT_OF[split]
        try:
            whole = datasets.load_dataset(
                self.name, self.config, split=wanted, revision=self.revision, streaming=True
            )
        except UNREADABLE as error:
            # unknown names, configurations and splits, loading scripts, a missing network: see the library's message
            remedy = "check name, configuration, split and network; a loading script: try @refs/convert/parquet"
            raise UserError(
                self.problem(f"the hub dataset does not open: {error}", remedy)
            ) from error
        return whole, f"{self.name}:{wanted}"

    def fingerprint(self) -> str:
        """Hash the spec: hashing the contents would need the network at every start. ``@REV`` with a commit binds it to
        its contents."""
        parts: tuple[Any, ...] = (
            self.name,
            self.revision,
            self.config,
            self.split,
            self.first,
            self.column,
        )
        if self.by:
            parts = (*parts, self.by)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        return {f"hub:{self.name}:{self.config or ''}:{self.split or self._SPLIT_OF[split]}"}
