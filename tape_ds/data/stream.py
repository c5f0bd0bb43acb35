"""Training sequences from text that is read and tokenised on demand; no token is stored.

For corpora such as C4, too large to tokenise before every run. As in :mod:`tape_ds.data.order`, sample ``i`` is a
pure function of (seed, i), shuffling included; the shuffled streams of ``datasets`` do not resume exactly.

``W`` stream workers take turns: sample ``i`` is sequence ``i // W`` of worker ``i % W``. In every epoch all shards are
put into an order drawn from (seed, epoch), and worker ``w`` reads those at ``w, w + W, ...``, each completely, its
documents through a bounded shuffle buffer with random numbers from (seed, epoch, shard). Workers enter the next epoch
independently, and the rest of a shard begins the first sequence of the next. Over all workers each token occurs once in
an epoch.

If ``W`` is a multiple of processes times micro-batch, no two ranks read with the same worker; otherwise text is
tokenised several times. On a resume each worker reads and tokenises again what is before its sequence in the shard that
it was in (:mod:`.shard_places`), and every document read counts as progress for the watchdog.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from tape_ds.data.bad_rows import BadRows
from tape_ds.data.order import ORDER_OF_SHARDS, SHUFFLE_IN_SHARD, RunSamples, generator, packed_item
from tape_ds.data.pack import PackedSequence, cut
from tape_ds.data.shard_places import Place, ShardPlaces
from tape_ds.data.sources import Document, Shard, TokenShard, TokenSource, parse_all
from tape_ds.data.tokenized import FIELD_OF, checked_ids, encode, made_for, tokenizer_fingerprint
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The limits of the shuffle buffer; both decide the order. Of token ids, an id counts as a character.
BUFFER_DOCUMENTS = 4096
BUFFER_CHARACTERS = 2**23

Item = TypeVar("Item")

_FIELD = FIELD_OF["train"]


@dataclass(frozen=True)
class Stream:
    """The settings that decide the sequences of a stream's workers."""

    shards: list[Shard | TokenShard]
    tokenizer: "PreTrainedTokenizerBase"
    # tokens of a sequence
    window: int
    seed: int
    # at most as many as shards, so that each has one in every epoch
    workers: int
    read: torch.Tensor = field(
        default_factory=lambda: torch.zeros((), dtype=torch.int64).share_memory_(), compare=False
    )
    """Documents read by all processes of a DataLoader; approximate, since several add to it."""
    places: ShardPlaces = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", ShardPlaces(self.workers, self.window))

    def visits(self, worker: int) -> Iterator[tuple[int, int]]:
        """Yield (epoch, shard) of every shard that ``worker`` reads, endlessly."""
        for epoch in count():
            order = generator(self.seed, ORDER_OF_SHARDS, epoch).permutation(len(self.shards))
            yield from ((epoch, int(shard)) for shard in order[worker :: self.workers])

    def tokens(self, worker: int, skip: int = 0) -> Iterator[np.ndarray]:
        """Yield the worker's tokens after the first ``skip``: int32 [n] for each document, n >= 1.

        Endless unless no shard has a token.
        """
        begun, passed = self.places.last_before(worker, skip)
        empty = set()
        for number, (epoch, shard) in islice(enumerate(self.visits(worker)), begun, None):
            self.places.note(worker, Place(number, passed))
            before = passed
            rng = generator(self.seed, SHUFFLE_IN_SHARD, epoch, shard)
            for ids in self._shuffled_ids(self.shards[shard], rng, skip - passed):
                self.read.add_(1)
                rest = ids[max(0, skip - passed) :]
                passed += len(ids)
                if len(rest):
                    yield rest
            if passed == before:
                empty.add(shard)
                if len(empty) == len(self.shards):
                    return

    def _shuffled_ids(
        self, shard: Shard | TokenShard, rng: np.random.Generator, skipped: int
    ) -> Iterator[np.ndarray]:
        """Yield the token ids of a shard's documents, int32 [n]; of stored ids those wholly among the first ``skipped``
        tokens are not read, and keep their type."""
        if isinstance(shard, Shard):
            for _, ids in encode(shuffled(shard.documents(), rng), self.tokenizer):
                yield ids
            return
        for name, ids in shuffled(shard.rows(), rng, lambda row: len(row[1])):
            skipped -= len(ids)
            if skipped >= 0:
                yield ids
            elif len(ids):
                yield checked_ids(shard.source, name, ids, len(self.tokenizer))


def _characters(document: Document) -> int:
    return len(document.text)


def shuffled(
    documents: Iterable[Item], rng: np.random.Generator, size: Callable[[Any], int] = _characters
) -> Iterator[Item]:
    """Yield the documents in random order, each drawn from a buffer of bounded size."""

    def draw() -> Item:
        at = int(rng.integers(len(held)))
        # so that pop moves nothing
        held[at], held[-1] = held[-1], held[at]
        return held.pop()

    held: list[Item] = []
    characters = 0
    for document in documents:
        held.append(document)
        characters += size(document)
        while len(held) > BUFFER_DOCUMENTS or characters > BUFFER_CHARACTERS:
            drawn = draw()
            characters -= size(drawn)
            yield drawn
    while held:
        yield draw()


class StreamError(UserError):
    """A :class:`UserError` during a run: a damaged line in the middle of a shard, a lost network.

    A DataLoader raises its worker's exception as ``type(error)(text)``; the message is extracted from that traceback.
    """

    on_one_rank = True

    def __init__(self, problems: Problem | Iterable[Problem] | str):
        super().__init__([] if isinstance(problems, str) else problems)
        head = "the training data cannot be read on, and the run stops here:"
        message = "\n".join(
            [head, *(f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1))]
        )
        self._message = (
            problems.rpartition("StreamError: ")[2].rstrip()
            if isinstance(problems, str)
            else message
        )

    def __str__(self) -> str:
        return self._message


def _identity_of(stream: Stream, data: list[str]) -> str:
    """Hash what decides where a shard begins; a resumed run may have been allowed another value of any of it."""
    facts = {
        "data": data,
        "shards": [shard.name for shard in stream.shards],
        "tokenizer": tokenizer_fingerprint(stream.tokenizer),
        "seed": stream.seed,
        "workers": stream.workers,
        "buffer": [BUFFER_DOCUMENTS, BUFFER_CHARACTERS],
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class StreamedSequences(RunSamples):
    """A run's samples, packed sequences of ``window`` tokens; items as of
    :class:`tape_ds.data.order.TrainingSequences`.

    Reading in rising order is cheap: every stream worker keeps its place, and an earlier sample restarts its worker.
    The object may be pickled or forked at any time. One DataLoader process is enough: others tokenise the same text.
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
        """
        Args:
            specs: of text, or of token ids that are read in parts; all their shards are mixed.
            workers: shards that are read at a time, 1 or more; at most all shards.
            skip_bad_rows: of the recipe; each process counts and logs those that it reads.
        """
        self.specs = list(specs)
        bad_rows = BadRows(skip_bad_rows, tell=True)
        shards: list[Shard | TokenShard] = []
        sources = parse_all(specs, _FIELD, bad_rows)
        for source in sources:
            if isinstance(source, TokenSource):
                made_for(source, tokenizer)
                shards += source.token_shards()
            else:
                shards += source.shards("train")
        self.stream = Stream(shards, tokenizer, window, seed, min(workers, len(shards)))
        self._identity = _identity_of(self.stream, [source.fingerprint() for source in sources])
        self.samples = samples
        # worker -> the number of its next sequence, and an iterator over the sequences from there on
        self._open: dict[int, tuple[int, Iterator[PackedSequence]]] = {}
        self._process = os.getpid()

    def places(self, index: int) -> Any:
        workers = self.stream.workers
        return self.places_of(
            [(index - worker + workers - 1) // workers for worker in range(workers)]
        )

    def places_of(self, sequences: Sequence[int]) -> dict[str, Any]:
        """Return :meth:`places` for the number of each worker's next sequence."""
        return {"stream": self._identity, "shards": self.stream.places.state(sequences)}

    def load_places(self, places: Any) -> None:
        if isinstance(places, dict) and places["stream"] == self._identity:
            self.stream.places.load(places["shards"])

    def documents_read(self) -> int:
        return int(self.stream.read)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def draw(self, index: int) -> dict[str, torch.Tensor]:
        sequence, worker = divmod(index, self.stream.workers)
        # a forked child shares its parent's open files and their positions
        if self._process != os.getpid():
            self._open, self._process = {}, os.getpid()
        at, sequences = self._open.pop(worker, (sequence + 1, iter(())))
        if at > sequence:
            window = self.stream.window
            at = sequence
            sequences = cut(self.stream.tokens(worker, skip=sequence * window), window)
        try:
            found = next(islice(sequences, sequence - at, None), None)
        except UserError as error:
            raise StreamError(error.problems) from error
        if found is None:
            raise StreamError(
                Problem(_FIELD, self.specs, "no document has any token", "name data that hold text")
            )
        # only now: one that failed is not read further
        self._open[worker] = sequence + 1, sequences
        return packed_item(found)
