"""How documents fill sequences: :func:`cut`, :func:`single` or :func:`whole`. Arrays in, sequences out; nothing is
stored here.

Each takes token arrays [n_i] and a sequence's ``length``, and yields ``{"input_ids", "document_ids"}``, both int32 [t].
``document_ids`` count from 0 in each sequence and say which document a token is of. The rest of a document that is cut
is a document of the next sequence, without what came before.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np

PackedSequence = dict[str, np.ndarray]
Packing = Literal["cut", "single", "whole"]

OPEN_SEQUENCES = 64
"""Sequences that :func:`whole` fills side by side."""


def cut(documents: Iterable[np.ndarray], length: int) -> Iterator[PackedSequence]:
    """Yield sequences of exactly ``length``: the documents one after another, cut without regard to their borders.

    The last tokens, too few for a sequence, are dropped (fewer than ``length`` of the whole corpus): a padded sequence
    would weigh as much as a full one.
    """
    ids, owners = np.empty(length, np.int32), np.empty(length, np.int32)
    filled = owner = 0
    for tokens in documents:
        at = 0
        while at < len(tokens):
            take = min(length - filled, len(tokens) - at)
            ids[filled : filled + take] = tokens[at : at + take]
            owners[filled : filled + take] = owner
            filled, at, owner = filled + take, at + take, owner + 1
            if filled == length:
                yield {"input_ids": ids.copy(), "document_ids": owners.copy()}
                filled = owner = 0


def single(documents: Iterable[np.ndarray], length: int) -> Iterator[PackedSequence]:
    """Yield sequences of exactly ``length``, each of one document; what a document has left over is dropped.

    So every token of a sequence has all tokens before it to attend to.
    """
    for tokens in documents:
        for piece in _pieces(tokens, length):
            if len(piece) == length:
                yield _joined([piece])


def whole(documents: Iterable[np.ndarray], length: int) -> Iterator[PackedSequence]:
    """Yield sequences of at most ``length`` in which no document is cut that fits a sequence; nothing is dropped.

    A longer document is cut into full sequences, yielded at once, and what is left over is placed like a short
    document. First fit over :data:`OPEN_SEQUENCES` sequences: a document goes into the oldest that has room. Where none
    has, the oldest is yielded as it is, and the collator pads it. So a sequence's documents were near one another, and
    memory is bounded.
    """
    sequences: list[list[np.ndarray]] = []
    room: list[int] = []
    for tokens in documents:
        for piece in _pieces(tokens, length):
            if len(piece) == length:
                yield _joined([piece])
                continue
            at = next((at for at, free in enumerate(room) if free >= len(piece)), None)
            if at is None and len(sequences) == OPEN_SEQUENCES:
                room.pop(0)
                yield _joined(sequences.pop(0))
            if at is None:
                at = len(sequences)
                sequences.append([])
                room.append(length)
            sequences[at].append(piece)
            room[at] -= len(piece)
            if room[at] == 0:
                room.pop(at)
                yield _joined(sequences.pop(at))
    yield from map(_joined, sequences)


FILL: dict[Packing, Callable[[Iterable[np.ndarray], int], Iterator[PackedSequence]]] = {
    "cut": cut,
    "single": single,
    "whole": whole,
}


def ended(documents: Iterable[np.ndarray], end: int) -> Iterator[np.ndarray]:
    """Yield the documents, each with the token ``end`` behind it; one that has it there already gets no second."""
    for tokens in documents:
        yield tokens if len(tokens) and tokens[-1] == end else np.append(tokens, np.array(end, tokens.dtype))


def _pieces(tokens: np.ndarray, length: int) -> Iterator[np.ndarray]:
    """``tokens`` in pieces of ``length``, the last one shorter."""
    for start in range(0, len(tokens), length):
        yield tokens[start : start + length]


def _joined(pieces: list[np.ndarray]) -> PackedSequence:
    """Return one sequence of several documents, or parts of them."""
    owners = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(piece) for piece in pieces])
    return {"input_ids": np.concatenate(pieces).astype(np.int32), "document_ids": owners}
