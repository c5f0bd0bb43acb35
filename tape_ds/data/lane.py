"""One lane of a stream: its shards one after another for ever, as documents, as tokens, as rows.

In every epoch all shards are put into an order drawn from (seed, epoch) and dealt out, lane ``l`` of ``L`` taking those
at ``l, l + L, ...``. Within a shard the documents pass a bounded shuffle buffer with random numbers of its own, from
(seed, epoch, shard). So a lane is one endless sequence of tokens that depends on nothing else, row ``k`` is its tokens
``k * window .. (k + 1) * window - 1``, and what a shard leaves over begins the next one's first row: nothing is lost.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.dataset import ORDER_OF_SHARDS, SHUFFLE_IN_SHARD, generator
from tape_ds.data.lane_record import LaneRecord
from tape_ds.data.packing import encode
from tape_ds.data.rows import cut
from tape_ds.data.sources import Document, Shard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The shuffle buffer never rests with more than this; both decide the order.
BUFFER_DOCUMENTS = 4096
BUFFER_CHARACTERS = 2**23


@dataclass(frozen=True)
class Stream:
    """What the lanes of a stream share: all that decides their rows."""

    shards: list[Shard]
    tokenizer: "PreTrainedTokenizerBase"
    window: int
    """Tokens a row."""
    seed: int
    lanes: int
    """How many; at most as many as shards, so that each has one in every epoch."""

    def visits(self, lane: int) -> Iterator[tuple[int, int]]:
        """(epoch, shard) of every shard that ``lane`` reads, without end."""
        for epoch in count():
            order = generator(self.seed, ORDER_OF_SHARDS, epoch).permutation(len(self.shards))
            yield from ((epoch, int(shard)) for shard in order[lane :: self.lanes])

    def documents(self, epoch: int, shard: int) -> Iterator[Document]:
        """The documents of a shard in the order in which that epoch reads them."""
        return shuffled(self.shards[shard].documents(), generator(self.seed, SHUFFLE_IN_SHARD, epoch, shard))

    def tokens(self, lane: int, record: LaneRecord, skip: int = 0) -> Iterator[np.ndarray]:
        """The lane's tokens without the first ``skip``: int32 [n] for each document, n >= 1.

        What ``record`` knows of the skipped part is not tokenised again. Ends only if no shard holds a token.

        Raises:
            UserError: data that cannot be read, or are not those of the record.
        """
        passed = 0
        empty = set()
        for epoch, shard in self.visits(lane):
            before = passed
            known, whole = record.ahead()
            if whole and passed + sum(known) <= skip:
                record.leave_out(len(known))
                passed += sum(known)
            else:
                documents = self.documents(epoch, shard)
                for tokens in known:
                    if passed + tokens > skip:
                        break
                    record.replay(next(documents, None))
                    passed += tokens
                for document, ids in encode(documents, self.tokenizer):
                    record.add(document, len(ids))
                    rest = ids[max(0, skip - passed) :]
                    passed += len(ids)
                    if len(rest):
                        yield rest
                record.end()
            if passed == before:
                empty.add(shard)
                if len(empty) == len(self.shards):
                    return


class Lane:
    """The rows of one lane in rising order from row ``first`` on."""

    def __init__(self, stream: Stream, number: int, first: int, record: LaneRecord):
        self._rows = cut(stream.tokens(number, record, skip=first * stream.window), stream.window)
        self.next = first
        """The lowest row that can still be read."""

    def read(self, row: int) -> dict[str, np.ndarray] | None:
        """Row ``row`` of the lane, as :func:`tape_ds.data.rows.cut` gives it; those before it are passed.

        None where the stream holds no tokens.

        Raises:
            UserError: as :meth:`Stream.tokens`; the lane cannot be read on afterwards.
        """
        found = None
        while self.next <= row:
            found = next(self._rows, None)
            self.next += 1
        return found


def shuffled(documents: Iterable[Document], rng: np.random.Generator) -> Iterator[Document]:
    """The documents in random order, each leaving a buffer of bounded size by lot."""
    held: list[Document] = []
    characters = 0
    for document in documents:
        held.append(document)
        characters += len(document.text)
        while len(held) > BUFFER_DOCUMENTS or characters > BUFFER_CHARACTERS:
            drawn = _draw(held, rng)
            characters -= len(drawn.text)
            yield drawn
    while held:
        yield _draw(held, rng)


def _draw(held: list[Document], rng: np.random.Generator) -> Document:
    """Take one out by lot; the last takes its place, which costs nothing."""
    at = int(rng.integers(len(held)))
    held[at], held[-1] = held[-1], held[at]
    return held.pop()
