"""``hub``: a dataset of the Hugging Face hub, streamed."""

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow

from tape_ds.data.sources import columns
from tape_ds.data.sources.base import UNREADABLE, Document, RowSource, Shard
from tape_ds.errors import Problem, UserError
from tape_ds.models.loading.hub import ID

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
    form = "hub:NAME[@REV][:CONFIG][:SPLIT][#field]"

    _SPEC = re.compile(ID + r"(:(?P<config>[^:\[#]*))?(:(?P<split>\w+)(\[:(?P<first>\d+)\])?)?(#(?P<column>.+))?")
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

    def check(self) -> list[Problem]:
        if self.name is None:
            remedy = f"write {self.form}, for example hub:allenai/c4:en:train[:20000]"
            return [self.problem("not the data spec of a hub dataset", remedy)]
        if self.split is None and self.config in {"train", "test", "validation"}:
            wrong = f"{self.config!r} is in the place of the configuration"
            instead = self.spec.replace(f":{self.config}", f"::{self.config}")
            return [self.problem(wrong, f"if it is the split, write {instead}")]
        if self.first == 0:
            return [self.problem("no documents are asked for", "write [:N] with N of 1 or more")]
        return []

    def shards(self, split: str) -> list[Shard]:
        """Return the dataset's shards (C4: 1,024 files), documents named ``dataset:split:shard:number``."""
        whole, place = self._open(split)
        if self.first is not None:  # one, since the end of the N documents is only known by reading
            return [Shard(place, partial(self._read, whole, 1, 0, place))]
        count = whole.num_shards
        names = (f"{place}:{index}" for index in range(count))
        return [Shard(name, partial(self._read, whole, count, index, name)) for index, name in enumerate(names)]

    def documents(self, split: str) -> Iterator[Document]:
        whole, place = self._open(split)
        return self._read(whole, 1, 0, place)

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        whole, place = self._open(split)
        return self.of_arrow(self._part(whole, 1, 0, place, columns.python_values))

    def _read(self, whole: "IterableDataset", count: int, index: int, place: str) -> Iterator[Document]:
        return self.texts(self._part(whole, count, index, place, partial(columns.python_values, name=self.column)))

    def _part(
        self, whole: "IterableDataset", count: int, index: int, place: str, items: Callable[[pyarrow.Table], list]
    ) -> Iterator[tuple[str, Any]]:
        """Yield part ``index`` of ``count`` of the dataset, at most ``[:N]`` rows, converted by ``items``."""
        # a new object for each reading: the library's objects keep their place, which two readings would share
        rows = whole.shard(num_shards=count, index=index)
        remedy = "check the network; a run resumes from its newest checkpoint"
        found = (item for batch in self._batches(rows) for item in items(batch))
        values = self.reading(found, f"{place}: the stream broke off", remedy)
        for number, value in enumerate(islice(values, self.first)):
            yield f"{place}:{number}", value

    def _batches(self, rows: "IterableDataset") -> Iterator[pyarrow.Table]:
        """Yield the rows as Arrow, so that unused columns are not converted to Python."""
        # iter(batch_size): plain iteration inside a DataLoader's worker would read only that worker's part of a shard
        for batch in rows.with_format("arrow").iter(batch_size=_BATCH):
            record = columns.as_record(batch.schema)
            try:
                columns.value_of(record, self.column)
            except KeyError:
                hint = columns.hint(self.column, record)
                wrong = f"the dataset has no column {self.column!r}"
                raise UserError(self.problem(wrong, f"add #field: {hint}")) from None
            yield batch

    def _open(self, split: str) -> tuple["IterableDataset", str]:
        import datasets

        wanted = self.split or self._SPLIT_OF[split]
        try:
            whole = datasets.load_dataset(self.name, self.config, split=wanted, revision=self.revision, streaming=True)
        except (*UNREADABLE, RuntimeError) as error:
            # unknown names, configurations and splits, loading scripts, a missing network: see the library's message
            remedy = "check name, configuration, split and network; a loading script: try @refs/convert/parquet"
            raise UserError(self.problem(f"the hub dataset does not open: {error}", remedy)) from error
        return whole, f"{self.name}:{wanted}"

    def fingerprint(self) -> str:
        """Hash the spec: hashing the contents would need the network at every start. ``@REV`` with a commit binds it to
        its contents."""
        parts = (self.name, self.revision, self.config, self.split, self.first, self.column)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        return {f"hub:{self.name}:{self.config or ''}:{self.split or self._SPLIT_OF[split]}"}
