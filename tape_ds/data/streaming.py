"""Training rows from text that is read as it is needed: no token is stored, no corpus is tokenised ahead.

For corpora such as C4, too large to tokenise before every run. As in :mod:`tape_ds.data.dataset`, sample ``i`` is a
pure function of (seed, i), shuffling included. (The shuffled streams of ``datasets`` do not resume exactly: their
buffer is filled anew with what comes next.)

The stream is read in ``L`` lanes (:mod:`tape_ds.data.lane`): sample ``i`` is row ``i // L`` of lane ``i % L``. In each
epoch a lane reads its share of the shards, every one once and whole; with its shards used up it goes on with its share
of the next epoch, at its own pace, so short lanes are an epoch ahead of long ones. Over all lanes no token is given
twice in an epoch and none is left out, except what the end of the run cuts off.

**Ranks.** Accelerate gives rank ``r`` of ``R`` the micro-batches ``r, r + R, ...`` of size ``b``. If the number of
lanes is a multiple of ``R * b``, each rank reads lanes of its own. Else several ranks read the same lanes, each for
itself: the samples are the same, but text is read and tokenised up to ``R`` times.

**Going on at sample i.** The number is the whole state: each lane asked for is read again up to its row. Without
``cache_dir`` that tokenises all the rank has tokenised before. With it, as far as a :mod:`tape_ds.data.lane_record` of
this very stream lies there, finished shards are not read at all and only the last one's documents are read again,
without tokenising them.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tape_ds.data import lane
from tape_ds.data.dataset import packed_item
from tape_ds.data.lane import Lane, Stream
from tape_ds.data.lane_record import LaneRecord
from tape_ds.data.packing import FIELD_OF, tokenizer_fingerprint
from tape_ds.data.sources import parse_all
from tape_ds.errors import Problem, UserError, raise_if_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Part of the fingerprint: raise it when the same settings give other rows.
FORMAT = 1

_FIELD = FIELD_OF["train"]


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


class StreamedRows(torch.utils.data.Dataset):
    """A run's samples, packed rows of ``window`` tokens; items as of :class:`tape_ds.data.dataset.TrainingRows`.

    Reading in rising order, as a sequential sampler does, is cheap: every lane stays open where it is. A sample behind
    that place opens its lane anew. Lanes nobody asks for are never opened. An open lane holds a shuffle buffer (8
    million characters at most) and a batch of token ids.

    It may be pickled, or inherited by a forked worker, at any time: open lanes stay behind. Any number of DataLoader
    workers gives the same samples; more than one tokenise the same lanes side by side, so one is enough.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tokenizer: "PreTrainedTokenizerBase",
        window: int,
        *,
        samples: int,
        seed: int,
        lanes: int = 32,
        cache_dir: str | Path | None = None,
    ):
        """Stream the training documents of ``addresses``.

        Args:
            addresses: see :mod:`tape_ds.data.sources`; all their shards are mixed.
            tokenizer: any of transformers; with its own special tokens, never truncating.
            window: tokens a row, 2 or more.
            samples: how many samples the run consumes; any number, epochs follow one another.
            seed: 0 or more.
            lanes: shards that are read side by side, 1 or more; all shards, where there are fewer.
            cache_dir: where lanes note the lengths of documents, to resume faster; None: nowhere.

        Raises:
            UserError: an address, or an ``arrow:`` folder, which needs no streaming; the hub does not answer.
            ValueError: a number out of range.
        """
        if window < 2 or lanes < 1:
            raise ValueError(f"window = {window}, lanes = {lanes}: at least 2 tokens a row and 1 lane are needed")
        if samples < 0 or seed < 0:
            raise ValueError(f"samples = {samples}, seed = {seed}: neither may be negative")
        self.sources = parse_all(addresses, _FIELD)
        wrong, remedy = "holds token ids already, and is read from disk as it is needed", "set streaming: false"
        raise_if_any([source.problem(wrong, remedy) for source in self.sources if source.tokenised])
        self.addresses = list(addresses)
        shards = [shard for source in self.sources for shard in source.shards("train")]
        self.stream = Stream(shards, tokenizer, window, seed, min(lanes, len(shards)))
        self.samples = samples
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self._open: dict[int, Lane] = {}
        self._process = os.getpid()

    def __len__(self) -> int:
        return self.samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides the samples (of the hub only what the address names)."""
        parts = (
            FORMAT,
            [source.fingerprint() for source in self.sources],
            tokenizer_fingerprint(self.stream.tokenizer),
            (self.stream.window, self.stream.seed, self.stream.lanes),
            (lane.BUFFER_DOCUMENTS, lane.BUFFER_CHARACTERS),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Sample ``index``.

        Raises:
            IndexError: it is none of the run's.
            StreamError: the data cannot be read, or hold no tokens.
        """
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        row, number = divmod(index, self.stream.lanes)
        try:
            return packed_item(self._row(number, row))
        except UserError as error:
            raise StreamError(error.problems) from error

    def _row(self, number: int, row: int) -> dict[str, np.ndarray]:
        """Row ``row`` of lane ``number``."""
        if self._process != os.getpid():  # a forked child shares its parent's open files and their places in them
            self._open, self._process = {}, os.getpid()
        reader = self._open.pop(number, None)
        if reader is None or reader.next > row:
            reader = Lane(self.stream, number, row, LaneRecord(self._record_path(number)))
        found = reader.read(row)
        if found is None:
            nothing = "no document has any token"
            raise UserError(Problem(_FIELD, self.addresses, nothing, "name data that hold text"))
        self._open[number] = reader  # back only now: a lane in which reading failed is not read on
        return found

    def _record_path(self, number: int) -> Path | None:
        if self.cache_dir is None:
            return None
        return self.cache_dir / f"stream-{self.fingerprint[:32]}" / f"lane-{number:04d}.lengths"
