"""The long-document filter: the tokenised documents that a run takes, and how much was read to find them.

Long contexts are learnt from long documents. A recipe sets their least length and, for a corpus larger than the run,
their number: PoSE's authors took 100,000 long texts from one part of the Pile.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute

from tape_ds import building
from tape_ds.data import cache, placeholders
from tape_ds.data.bad_rows import BadRows, SourceBadRows
from tape_ds.data.sources import Source, parse_all
from tape_ds.data.tokenized import (
    FIELD_OF,
    FORMAT,
    document_features,
    encode,
    tokenize_source,
    tokenizer_fingerprint,
)
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Selection:
    """Tokenised documents, and how much was read to find them. A document without a token is not counted."""

    # rows `{name: string, input_ids: list<int32>}`
    documents: "Dataset"
    tokens: int
    # with those that a filter left out
    read_documents: int
    read_tokens: int

    def __str__(self) -> str:
        return (
            f"{len(self.documents):,} of {self.read_documents:,} documents, "
            f"{self.tokens:,} of {self.read_tokens:,} tokens"
        )


def select(
    specs: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    split: str,
    cache_dir: str | Path,
    min_tokens: int = 1,
    max_documents: int | None = None,
    bad_rows: BadRows | None = None,
) -> Selection:
    """Return the documents of ``specs`` that are long enough, in their order.

    Args:
        specs: see :mod:`tape_ds.data.sources`. ``arrow:`` rows, a ``bin:`` file and what a file of ``tokens:`` has
            between borders are one document each, their ids checked against the vocabulary. A prepared folder is read
            in place.
        tokenizer: any of transformers; with its special tokens, never truncating.
        min_tokens: shorter documents are left out.
        max_documents: reading ends at this number of long enough documents, so that a corpus too large to tokenise can
            be used; only those are stored, and both numbers are part of the cache's key. None: all documents are
            tokenised and stored, and ``min_tokens`` may change without tokenising again.
        bad_rows: where unreadable rows count; by default the first is refused.
    """
    from datasets import concatenate_datasets

    # room: documents still wanted
    identity = tokenizer_fingerprint(tokenizer)
    room = max_documents
    parts: list[Selection] = []
    for source in parse_all(specs, FIELD_OF[split], bad_rows):
        if room is None or source.tokenised:
            documents = tokenize_source(source, tokenizer, identity, split, Path(cache_dir))
            lengths = token_counts(documents)
            kept = np.flatnonzero(lengths >= min_tokens)[:room]
            read = lengths if room is None or len(kept) < room else lengths[: kept[-1] + 1]
            chosen = documents if len(kept) == len(documents) else documents.select(kept)
            part = Selection(chosen, int(lengths[kept].sum()), len(read), int(read.sum()))
        else:
            part = _first(source, tokenizer, identity, split, Path(cache_dir), min_tokens, room)
        parts.append(part)
        room = None if room is None else room - len(part.documents)
        if room == 0:
            break
    counts = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("tokens", "read_documents", "read_tokens")
    }
    selection = Selection(
        concatenate_datasets(_alike([part.documents for part in parts], Path(cache_dir))), **counts
    )
    if len(selection.documents) == 0:
        wrong = f"none of {selection.read_documents} documents has {min_tokens} tokens or more"
        remedy = "name longer documents, or lower min_document_tokens"
        raise UserError(Problem(FIELD_OF[split], list(specs), wrong, remedy))
    return selection


def _alike(parts: "Sequence[Dataset]", cache_dir: Path) -> "list[Dataset]":
    """Return documents with token ids of one type: where some have 16 bits, the others are stored so, too."""
    short = document_features("uint16")
    found = []
    for documents in parts:
        is_wide = documents.features["input_ids"] != short["input_ids"]
        if is_wide and any(other.features["input_ids"] == short["input_ids"] for other in parts):
            documents = _narrowed(documents, cache_dir)
        found.append(documents)
    return found


def _narrowed(documents: "Dataset", cache_dir: Path) -> "Dataset":
    from datasets import Dataset, load_from_disk

    short = document_features("uint16")
    if not len(documents):
        return Dataset.from_dict({"name": [], "input_ids": []}, short)
    key = cache.key("narrow", format=FORMAT, documents=documents._fingerprint)

    def rows() -> Iterator[dict[str, Any]]:
        for batch in documents.with_format("arrow").iter(batch_size=64):
            columns = zip(
                batch.column("name").to_pylist(),
                batch.column("input_ids").combine_chunks(),
                strict=True,
            )
            for name, ids in columns:
                yield {"name": name, "input_ids": ids.values.to_numpy().astype(np.uint16)}

    def build(folder: Path) -> None:
        cache.write(key, short, rows(), folder)

    return load_from_disk(str(building.folder(cache_dir, key, build)))


def _first(
    source: Source,
    tokenizer: "PreTrainedTokenizerBase",
    identity: str,
    split: str,
    cache_dir: Path,
    min_tokens: int,
    count: int,
) -> Selection:
    """Return the first ``count`` documents of a text source that have ``min_tokens``; the others are not stored."""
    from datasets import Dataset, load_from_disk

    origin = {"source": source.fingerprint(), "split": split, "tokenizer": identity}
    origin |= placeholders.part_of_key(tokenizer)
    key = cache.key("first", format=FORMAT, **origin, min_tokens=min_tokens, count=count)
    features = document_features()
    source_bad_rows = source.bad_rows = SourceBadRows(source.bad_rows, source.field, source.spec)
    read = {"tokens": 0, "read_documents": 0, "read_tokens": 0}

    def long_rows() -> Iterator[dict[str, Any]]:
        for document, ids in encode(source.documents(split), tokenizer):
            if placeholders.leave_out(source, document.name, ids, tokenizer):
                continue
            read["read_documents"] += len(ids) > 0
            read["read_tokens"] += len(ids)
            if len(ids) >= max(1, min_tokens):
                read["tokens"] += len(ids)
                yield {"name": document.name, "input_ids": ids}

    def build(folder: Path) -> None:
        if not cache.write(key, features, islice(long_rows(), count), folder):
            folder.mkdir()
        (folder / "read.json").write_text(json.dumps(read), encoding="utf-8")
        source_bad_rows.write(folder / source_bad_rows.FILE)

    folder = building.folder(cache_dir, key, build)
    source_bad_rows.count(folder / source_bad_rows.FILE)
    counts = json.loads((folder / "read.json").read_text(encoding="utf-8"))
    if not counts["tokens"]:
        return Selection(Dataset.from_dict({"name": [], "input_ids": []}, features), **counts)
    return Selection(load_from_disk(str(folder)), **counts)


def upsampled(documents: "Dataset", times: Mapping[int, int]) -> "Dataset":
    """Return the documents with long ones several times, see :func:`with_copies`."""
    if times:
        return documents.select(with_copies(token_counts(documents), times))
    return documents


def with_copies(lengths: np.ndarray, times: Mapping[int, int]) -> np.ndarray:
    """Return the numbers of documents of these lengths, int64 [n], each as often as ``times`` has for the largest of
    its lengths that it reaches, once below all of them. After all documents come the second copies, then the third
    ones, so that copies are far apart."""
    factors = np.array([1, *(times[length] for length in sorted(times))])
    own = factors[np.searchsorted(np.array(sorted(times)), lengths, side="right")]
    return np.concatenate(
        [np.flatnonzero(own >= copy) for copy in range(1, int(own.max(initial=1)) + 1)]
    )


def token_counts(rows: "Dataset") -> np.ndarray:
    """Return the tokens of each row, int64 [rows], from the list offsets: no token is read."""
    stored = (
        pyarrow.compute.list_value_length(rows.data.column("input_ids")).to_numpy().astype(np.int64)
    )
    # of a selection: which of the stored rows it has
    chosen = rows._indices
    if chosen is None:
        return stored
    return stored[chosen.column(0).to_numpy()]


def spread(count: int, wanted: int) -> np.ndarray:
    """Return ``wanted`` of the numbers 0 .. count - 1, or all, evenly spread, int64."""
    wanted = min(wanted, count)
    return np.arange(wanted, dtype=np.int64) * count // max(1, wanted)
