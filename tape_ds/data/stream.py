"""Training sequences from text that is read as it is needed: no token is stored, no corpus is tokenised ahead.

For corpora such as C4, too large to tokenise before every run. As in :mod:`tape_ds.data.order`, sample ``i`` is a
pure function of (seed, i), shuffling included. (The shuffled streams of ``datasets`` do not resume exactly: their
buffer is filled anew with what comes next.)

``W`` stream workers read side by side: sample ``i`` is sequence ``i // W`` of worker ``i % W``. In every epoch all
shards are put into an order drawn from (seed, epoch), and worker ``w`` reads those at ``w, w + W, ...``, each whole,
its documents through a bounded shuffle buffer with random numbers from (seed, epoch, shard). So a worker is one endless
sequence of tokens that depends on nothing else; it goes on to the next epoch at its own pace, and what a shard leaves
over begins the next one's first sequence. Over all workers no token is given twice in an epoch and none is left out,
except what the end of the run cuts off.

**Ranks.** Accelerate gives rank ``r`` of ``R`` the micro-batches ``r, r + R, ...`` of size ``b``. If the number of
workers is a multiple of ``R * b``, each rank reads with workers of its own. Else several ranks read the same ones, each
for itself: the samples are the same, but text is read and tokenised up to ``R`` times.

**Resuming at sample i.** The number is the whole state: each worker asked for reads and tokenises again, from its
beginning, all that comes before its sequence. It may take hours: to the watchdog, every document read is progress.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tape_ds.data.bad_rows import BadRows
from tape_ds.data.order import ORDER_OF_SHARDS, SHUFFLE_IN_SHARD, generator, packed_item
from tape_ds.data.pack import PackedSequence, cut
from tape_ds.data.sources import Document, Shard, parse_all
from tape_ds.data.tokenized import FIELD_OF, encode
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The shuffle buffer never rests with more than this; both decide the order.
BUFFER_DOCUMENTS = 4096
BUFFER_CHARACTERS = 2**23

_FIELD = FIELD_OF["train"]


@dataclass(frozen=True)
class Stream:
    """What the workers of a stream share: all that decides their sequences."""

    shards: list[Shard]
    tokenizer: "PreTrainedTokenizerBase"
    window: int
    """Tokens a sequence."""
    seed: int
    workers: int
    """How many; at most as many as shards, so that each has one in every epoch."""
    read: torch.Tensor = field(
        default_factory=lambda: torch.zeros((), dtype=torch.int64).share_memory_(), compare=False
    )
    """Documents read, those of a DataLoader's processes included; approximate, since several add to it."""

    def visits(self, worker: int) -> Iterator[tuple[int, int]]:
        """(epoch, shard) of every shard that ``worker`` reads, without end."""
        for epoch in count():
            order = generator(self.seed, ORDER_OF_SHARDS, epoch).permutation(len(self.shards))
            yield from ((epoch, int(shard)) for shard in order[worker :: self.workers])

    def documents(self, epoch: int, shard: int) -> Iterator[Document]:
        """Return the documents of a shard in the order in which that epoch reads them."""
        return shuffled(self.shards[shard].documents(), generator(self.seed, SHUFFLE_IN_SHARD, epoch, shard))

    def tokens(self, worker: int, skip: int = 0) -> Iterator[np.ndarray]:
        """Yield the worker's tokens without the first ``skip``: int32 [n] for each document, n >= 1.

        Ends only if no shard holds a token.

        Raises:
            UserError: data that cannot be read.
        """
        passed = 0
        empty = set()
        for epoch, shard in self.visits(worker):
            before = passed
            for _, ids in encode(self.documents(epoch, shard), self.tokenizer):
                self.read.add_(1)
                rest = ids[max(0, skip - passed) :]
                passed += len(ids)
                if len(rest):
                    yield rest
            if passed == before:
                empty.add(shard)
                if len(empty) == len(self.shards):
                    return

    def sequences(self, worker: int, first: int) -> Iterator[PackedSequence]:
        """Return the worker's sequences from sequence ``first`` on, as :func:`tape_ds.data.pack.cut` gives
        them."""
        return cut(self.tokens(worker, skip=first * self.window), self.window)


def shuffled(documents: Iterable[Document], rng: np.random.Generator) -> Iterator[Document]:
    """Yield the documents in random order, each drawn from a buffer of bounded size."""

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


class StreamError(UserError):
    """A :class:`UserError` that is only met while a run reads: a damaged line in the middle of a shard, a lost network.

    A DataLoader hands an exception of its worker on as ``type(error)(text)``, the traceback included; the message is
    found again in that text.
    """

    on_one_rank = True

    def __init__(self, problems: Problem | Iterable[Problem] | str):
        super().__init__([] if isinstance(problems, str) else problems)
        head = "the training data cannot be read on, and the run stops here:"
        message = "\n".join([head, *(f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1))])
        self._message = problems.rpartition("StreamError: ")[2].rstrip() if isinstance(problems, str) else message

    def __str__(self) -> str:
        return self._message


class StreamedSequences(torch.utils.data.Dataset):
    """A run's samples, packed sequences of ``window`` tokens; items as of
    :class:`tape_ds.data.order.TrainingSequences`.

    Reading in rising order, as a sequential sampler does, is cheap: every stream worker stays where it is. A sample
    behind that place begins its worker anew. It may be pickled, or inherited by a forked process, at any time. Any
    number of DataLoader processes gives the same samples; one is enough, since others tokenise the same text.
    """

    def __init__(
        self,
        specs: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        window: int,
        *,
        samples: int,
        seed: int,
        workers: int = 32,
        skip_bad_rows: int | None = None,
    ):
        """Stream the training documents of ``specs``.

        Args:
            specs: of data, see :mod:`tape_ds.data.sources`; all their shards are mixed.
            tokenizer: any of transformers; with its own special tokens, never truncating.
            window: tokens a sequence, 2 or more.
            samples: how many samples the run consumes; any number, epochs follow one another.
            seed: 0 or more.
            workers: shards that are read side by side, 1 or more; all shards, where there are fewer.
            skip_bad_rows: of the recipe; a process counts, and logs, those that it meets itself.

        Raises:
            UserError: a spec, or the hub does not answer.
            TypeError: a spec of token ids, which need no streaming; the recipe refuses it.
        """
        self.specs = list(specs)
        bad_rows = BadRows(skip_bad_rows, tell=True)
        shards = [shard for source in parse_all(specs, _FIELD, bad_rows) for shard in source.shards("train")]
        self.stream = Stream(shards, tokenizer, window, seed, min(workers, len(shards)))
        self.samples = samples
        # Of a worker: the number of its next sequence, and an iterator over those from there on.
        self._open: dict[int, tuple[int, Iterator[PackedSequence]]] = {}
        self._process = os.getpid()

    def __len__(self) -> int:
        return self.samples

    def documents_read(self) -> int:
        """Return about how many documents were read so far, by all processes that share this object."""
        return int(self.stream.read)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Sample ``index``.

        Raises:
            IndexError: the run has no such sample.
            StreamError: the data cannot be read, or hold no tokens.
        """
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        sequence, number = divmod(index, self.stream.workers)
        try:
            return packed_item(self._sequence(number, sequence))
        except UserError as error:
            raise StreamError(error.problems) from error

    def _sequence(self, number: int, sequence: int) -> dict[str, np.ndarray]:
        """Return sequence number ``sequence`` of stream worker ``number``."""
        if self._process != os.getpid():  # a forked child shares its parent's open files and their places in them
            self._open, self._process = {}, os.getpid()
        at, sequences = self._open.pop(number, (sequence + 1, iter(())))
        if at > sequence:
            at, sequences = sequence, self.stream.sequences(number, sequence)
        found = next(islice(sequences, sequence - at, None), None)
        if found is None:
            nothing = "no document has any token"
            raise UserError(Problem(_FIELD, self.specs, nothing, "name data that hold text"))
        self._open[number] = sequence + 1, sequences  # back only now: one in which reading failed is not read on
        return found
