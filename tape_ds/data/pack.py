"""Documents packed into training sequences by :func:`cut`, :func:`single`, :func:`whole` or :func:`best_fit`;
:func:`pack` caches them.

The four take token arrays [n_i] and a sequence's ``length``, and yield ``{"input_ids", "document_ids"}``, both int32
[t]. ``document_ids`` count from 0 in each sequence. The rest of a document that is cut is a document of the next
sequence, without what came before.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from tape_ds.data import cache
from tape_ds.errors import Problem

if TYPE_CHECKING:
    from datasets import Dataset

PackedSequence = dict[str, np.ndarray]
Packing = Literal["cut", "single", "whole", "best_fit"]
PADDED: tuple[Packing, ...] = ("whole", "best_fit")
"""Those that give sequences shorter than ``length``."""

# that whole() fills at a time, and best_fit() keeps for its next buffer
OPEN_SEQUENCES = 64
# sequences whose tokens best_fit() sorts at a time
BUFFER_SEQUENCES = 256
# Part of every key: raise it when the code below gives other output for the same input.
FORMAT = 1


def pack(
    documents: "Dataset",
    length: int,
    cache_dir: str | Path,
    packing: Packing = "cut",
    end: int | None = None,
    *,
    specs: Sequence[str] = (),
) -> "Dataset":
    """Return sequences of at most ``length`` tokens, filled with ``documents``.

    Args:
        documents: with a column ``input_ids``; their order is kept.
        packing: a name of :data:`FILL`. Those of :data:`PADDED` give sequences shorter than ``length``.
        end: a token after each document that does not end with it; None: no token.
        specs: the documents' data specs, for messages.

    Returns:
        Rows ``{input_ids: list<int32>, document_ids: list<int32>}``.
    """
    from datasets import Features, List, Value

    column = List(Value("int32"), -1 if packing in PADDED else length)
    features = Features({"input_ids": column, "document_ids": column})
    key = cache.key(
        "rows",
        format=FORMAT,
        documents=documents._fingerprint,
        length=length,
        packing=packing,
        end=end,
    )
    of = f" of {', '.join(specs)}" if specs else ""
    wrong = f"not even all documents{of} together fill"
    if packing == "single":
        wrong = f"no document{of} alone fills"
    too_few = Problem(
        "window", length, f"{wrong} a sequence", "name more data, or make the window smaller"
    )

    def arrays() -> Iterator[np.ndarray]:
        for batch in documents.with_format("arrow", columns=["input_ids"]).iter(batch_size=64):
            for row in batch.column("input_ids").combine_chunks():
                tokens = row.values.to_numpy()
                if end is not None and not (len(tokens) and tokens[-1] == end):
                    tokens = np.append(tokens, np.array(end, tokens.dtype))
                yield tokens

    return cache.rows(
        cache_dir, key, features, lambda: FILL[packing](arrays(), length), none=too_few
    )


def cut(documents: Iterable[np.ndarray], length: int) -> Iterator[PackedSequence]:
    """Yield sequences of exactly ``length``: the documents concatenated, and cut regardless of their borders.

    The last tokens, fewer than ``length`` of the whole corpus, are dropped: a padded sequence would have the weight of
    a full one.
    """
    ids = np.empty(length, np.int32)
    owners = np.empty(length, np.int32)
    filled = owner = 0
    for tokens in documents:
        at = 0
        while at < len(tokens):
            take = min(length - filled, len(tokens) - at)
            ids[filled : filled + take] = tokens[at : at + take]
            owners[filled : filled + take] = owner
            filled += take
            at += take
            owner += 1
            if filled == length:
                yield {"input_ids": ids.copy(), "document_ids": owners.copy()}
                filled = owner = 0


def single(documents: Iterable[np.ndarray], length: int) -> Iterator[PackedSequence]:
    """Yield sequences of exactly ``length``, each of one document, so that every token can attend to all before it; the
    rest of a document is dropped."""
    for tokens in documents:
        for start in range(0, len(tokens) - length + 1, length):
            yield _joined([tokens[start : start + length]])


def whole(documents: Iterable[np.ndarray], length: int) -> Iterator[PackedSequence]:
    """Yield sequences of at most ``length`` without cutting a document that fits a sequence; nothing is dropped.

    A longer document is cut into full sequences, yielded at once, and its rest is placed like a short document. First
    fit over :data:`OPEN_SEQUENCES` sequences: a document goes into the oldest with enough room. If none has, the oldest
    is yielded, and the collator pads it.
    """
    sequences: list[list[np.ndarray]] = []
    room: list[int] = []
    for tokens in documents:
        full, rest = _cut(tokens, length)
        yield from full
        if len(rest) == 0:
            continue
        at = next((at for at, free in enumerate(room) if free >= len(rest)), None)
        if at is None and len(sequences) == OPEN_SEQUENCES:
            room.pop(0)
            yield _joined(sequences.pop(0))
        if at is None:
            at = len(sequences)
            sequences.append([])
            room.append(length)
        sequences[at].append(rest)
        room[at] -= len(rest)
        if room[at] == 0:
            room.pop(at)
            yield _joined(sequences.pop(at))
    yield from map(_joined, sequences)


def _cut(tokens: np.ndarray, length: int) -> tuple[Iterator[PackedSequence], np.ndarray]:
    """Return the full sequences at the beginning of a document, and the tokens that are left."""
    end = len(tokens) - len(tokens) % length
    full = (_joined([tokens[start : start + length]]) for start in range(0, end, length))
    return full, tokens[end:]


def best_fit(documents: Iterable[np.ndarray], length: int) -> Iterator[PackedSequence]:
    """Yield sequences of at most ``length`` without cutting a document that fits a sequence; nothing is dropped.

    Best-fit decreasing (Ding et al. 2024, arXiv:2404.10830, Section 3), a buffer at a time: documents are read until
    they fill :data:`BUFFER_SEQUENCES`, and placed the longest first, each into the sequence with the least room that
    takes it. Of the sequences that then have room, the :data:`OPEN_SEQUENCES` with the most are kept for the next
    buffer, the others are yielded. A longer document is cut into full sequences, yielded at once, and its rest is
    placed like a short document. Documents of a sequence are in the order in which they were read.
    """
    filling = _BestFit(length)
    buffer: list[np.ndarray] = []
    buffered = 0
    for tokens in documents:
        full, rest = _cut(tokens, length)
        yield from full
        if len(rest):
            buffer.append(rest)
            buffered += len(rest)
        if buffered >= BUFFER_SEQUENCES * length:
            yield from filling.place(buffer)
            yield from filling.release(OPEN_SEQUENCES)
            buffer = []
            buffered = 0
    yield from filling.place(buffer)
    yield from filling.release(0)


class _BestFit:
    """Sequences of ``length`` that have room, and the pieces in them."""

    def __init__(self, length: int):
        self.length = length
        self.read = 0  # pieces so far
        self.made = 0  # sequences so far
        # (room, number of the sequence), rising
        self.rooms: list[tuple[int, int]] = []
        # by number: (when it was read, tokens)
        self.pieces: dict[int, list[tuple[int, np.ndarray]]] = {}

    def place(self, buffer: Sequence[np.ndarray]) -> Iterator[PackedSequence]:
        """Place pieces, the longest first, and yield the sequences that they fill."""
        numbered = list(enumerate(buffer, self.read))
        self.read += len(numbered)
        # stable
        for when, piece in sorted(numbered, key=lambda each: -len(each[1])):
            at = bisect_left(self.rooms, (len(piece), -1))
            if at < len(self.rooms):
                room, number = self.rooms.pop(at)
            else:
                room = self.length
                number = self.made
                self.made += 1
            self.pieces.setdefault(number, []).append((when, piece))
            if room == len(piece):
                yield self._take(number)
            else:
                insort(self.rooms, (room - len(piece), number))

    def release(self, kept: int) -> Iterator[PackedSequence]:
        """Yield all but the ``kept`` sequences with the most room, the fullest first."""
        given = self.rooms[: max(0, len(self.rooms) - kept)]
        self.rooms = self.rooms[len(given) :]
        for _, number in given:
            yield self._take(number)

    def _take(self, number: int) -> PackedSequence:
        return _joined(
            [piece for _, piece in sorted(self.pieces.pop(number), key=lambda each: each[0])]
        )


def _joined(pieces: list[np.ndarray]) -> PackedSequence:
    owners = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(piece) for piece in pieces])
    return {"input_ids": np.concatenate(pieces).astype(np.int32), "document_ids": owners}


FILL: dict[Packing, Callable[[Iterable[np.ndarray], int], Iterator[PackedSequence]]] = {
    "cut": cut,
    "single": single,
    "whole": whole,
    "best_fit": best_fit,
}
