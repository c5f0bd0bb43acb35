"""One of the readers that a stream is read by: shards one after another for ever, as documents, as tokens, as rows.

In every epoch all shards are put into an order drawn from (seed, epoch) and dealt out: worker ``w`` of ``W`` takes
those at ``w, w + W, ...``. Within a shard the documents pass a bounded shuffle buffer with its own random numbers, from
(seed, epoch, shard). So a worker is one endless sequence of tokens that depends on nothing else. Row ``k`` is its
tokens ``k * window .. (k + 1) * window - 1``, and what a shard leaves over begins the next one's first row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from tape_ds.data.dataset import ORDER_OF_SHARDS, SHUFFLE_IN_SHARD, generator
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
    """What the workers of a stream share: all that decides their rows."""

    shards: list[Shard]
    tokenizer: "PreTrainedTokenizerBase"
    window: int
    """Tokens a row."""
    seed: int
    workers: int
    """How many; at most as many as shards, so that each has one in every epoch."""

    def visits(self, worker: int) -> Iterator[tuple[int, int]]:
        """(epoch, shard) of every shard that ``worker`` reads, without end."""
        for epoch in count():
            order = generator(self.seed, ORDER_OF_SHARDS, epoch).permutation(len(self.shards))
            yield from ((epoch, int(shard)) for shard in order[worker :: self.workers])

    def documents(self, epoch: int, shard: int) -> Iterator[Document]:
        """The documents of a shard in the order in which that epoch reads them."""
        return shuffled(self.shards[shard].documents(), generator(self.seed, SHUFFLE_IN_SHARD, epoch, shard))

    def tokens(self, worker: int, skip: int = 0) -> Iterator[np.ndarray]:
        """The worker's tokens without the first ``skip``: int32 [n] for each document, n >= 1.

        Ends only if no shard holds a token.

        Raises:
            UserError: data that cannot be read.
        """
        passed = 0
        empty = set()
        for epoch, shard in self.visits(worker):
            before = passed
            for _, ids in encode(self.documents(epoch, shard), self.tokenizer):
                rest = ids[max(0, skip - passed) :]
                passed += len(ids)
                if len(rest):
                    yield rest
            if passed == before:
                empty.add(shard)
                if len(empty) == len(self.shards):
                    return


class StreamWorker:
    """The rows of one worker in rising order from row ``first`` on."""

    def __init__(self, stream: Stream, number: int, first: int):
        self._rows = cut(stream.tokens(number, skip=first * stream.window), stream.window)
        self.next = first
        """The lowest row that can still be read."""

    def read(self, row: int) -> dict[str, np.ndarray] | None:
        """Row ``row``, as :func:`tape_ds.data.rows.cut` gives it; those before it are passed.

        None where the stream holds no tokens.

        Raises:
            UserError: data that cannot be read; the worker cannot read on afterwards.
        """
        found = None
        while self.next <= row:
            found = next(self._rows, None)
            self.next += 1
        return found


def shuffled(documents: Iterable[Document], rng: np.random.Generator) -> Iterator[Document]:
    """The documents in random order, each drawn from a buffer of bounded size."""

    def draw() -> Document:
        at = int(rng.integers(len(held)))
        held[at], held[-1] = held[-1], held[at]  # the last takes its place, which costs nothing
        return held.pop()

    held: list[Document] = []
    characters = 0
    for document in documents:
        held.append(document)
        characters += len(document.text)
        while len(held) > BUFFER_DOCUMENTS or characters > BUFFER_CHARACTERS:
            drawn = draw()
            characters -= len(drawn.text)
            yield drawn
    while held:
        yield draw()
