"""One shard of prepared data: tokenised documents in an Arrow stream file, the kind ``datasets`` maps into memory.

The bytes depend on the documents and the limit alone, not on how they were batched for the tokenizer: so a shard made
again after a crash, or by another number of workers, is the same file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute

from tape_ds import storage
from tape_ds.data.packing import document_features
from tape_ds.data.sources import Document
from tape_ds.errors import Problem, UserError, disk_error

# A record batch ends at either; larger ones would cost memory, smaller ones time when single documents are read.
_BATCH_DOCUMENTS = 256
_BATCH_TOKENS = 2**20

GOES_ON = "started again, the preparation goes on where it was"
"""What a person is told whose disk refused."""


@dataclass
class Written:
    """What became of the documents."""

    read: int = 0
    """Documents taken from the iterator."""
    documents: int = 0
    """Those that have tokens, and so a row."""
    tokens: int = 0


def write(path: Path, rows: Iterator[tuple[Document, np.ndarray]], limit: int) -> Written:
    """Write rows ``{name, input_ids}`` until they hold ``limit`` tokens or none are left; documents stay whole.

    Args:
        path: made or written over; on the disk for good when this returns, and gone when it raises.
        rows: of :func:`tape_ds.data.packing.encode`; what is raised in reading them is passed on.
        limit: tokens, 1 or more.

    Raises:
        UserError: the disk is full or refuses, or gives back something else than was written.
    """
    try:
        return _write(path, rows, limit)
    except Exception:
        if path.is_file():
            path.unlink()  # it would keep the disk full
        raise


def _write(path: Path, rows: Iterator[tuple[Document, np.ndarray]], limit: int) -> Written:
    written = Written()
    with _disk(path):
        file = pa.OSFile(str(path), "wb")
    with file:
        stream = pa.ipc.new_stream(file, _schema())
        for batch in _batches(rows, limit, written):
            with _disk(path):
                stream.write_batch(batch)
        with _disk(path):
            stream.close()
    with _disk(path):
        storage.sync(path)
        found = measure(path)
    if found != (written.documents, written.tokens):
        wrong = f"{path.name} reads back as {found} documents and tokens, not as what was written"
        raise UserError(Problem("output", str(path.parent), wrong, "check the disk"))
    return written


def measure(path: Path) -> tuple[int, int]:
    """(documents, tokens) of a shard, from the file."""
    documents = tokens = 0
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            documents += batch.num_rows
            tokens += pyarrow.compute.sum(pyarrow.compute.list_value_length(batch.column("input_ids"))).as_py()
    return documents, tokens


def _batches(rows: Iterator[tuple[Document, np.ndarray]], limit: int, written: Written) -> Iterator[pa.RecordBatch]:
    """Rows in batches, counted in ``written``."""
    names: list[str] = []
    arrays: list[np.ndarray] = []
    waiting = 0
    while written.tokens < limit and (row := next(rows, None)) is not None:
        document, ids = row
        written.read += 1
        if len(ids) == 0:
            continue
        names.append(document.name)
        arrays.append(ids)
        waiting += len(ids)
        written.documents += 1
        written.tokens += len(ids)
        if len(names) == _BATCH_DOCUMENTS or waiting >= _BATCH_TOKENS:
            yield _batch(names, arrays)
            names, arrays, waiting = [], [], 0
    if names:
        yield _batch(names, arrays)


def _batch(names: list[str], arrays: list[np.ndarray]) -> pa.RecordBatch:
    schema = _schema()
    ends = pa.array(np.cumsum([0, *map(len, arrays)]), pa.int32())
    ids = pa.array(np.concatenate(arrays), pa.int32())
    lists = pa.ListArray.from_arrays(ends, ids, type=schema.field("input_ids").type)
    return pa.RecordBatch.from_arrays([pa.array(names, pa.string()), lists], schema=schema)


def _schema() -> pa.Schema:
    return document_features().arrow_schema


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What the disk refuses becomes a message; wraps no reading of data, whose errors are others."""
    try:
        yield
    except OSError as error:
        refused = disk_error(error, "output", path.parent, GOES_ON)
        if refused is not None:
            raise refused from error
        wrong = f"cannot be written ({error.strerror or error})"
        raise UserError(Problem("output", str(path.parent), wrong, f"check the disk; {GOES_ON}")) from error
