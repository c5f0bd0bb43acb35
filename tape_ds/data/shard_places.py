"""Where the workers of a stream began their last shards, so that a resumed run reads on from there.

A shard begins after a number of tokens that only reading tells. It is a pure function of the stream's settings, so
what is known of it stays true, and a place that is not known costs time alone: reading begins before it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

KEPT = 64
"""Places of each worker, at most one a sequence: more sequences than loader processes read ahead of the training."""
_TOKEN_BITS = 39
"""Of a place in one number: 5e11 tokens of a worker. The other bits count its shards, to 1.6e7."""


class Place(NamedTuple):
    shard: int
    """How many shards the worker read before."""
    passed: int
    """Their tokens."""


BEGIN = Place(0, 0)


class ShardPlaces:
    """Places of all workers, in memory that loader processes share with the one that started them. A place is one
    number of 64 bits, which is written at once: another process reads the old one or the new one."""

    def __init__(self, workers: int, window: int):
        self._window = window
        self._places = torch.zeros((workers, KEPT), dtype=torch.int64).share_memory_()

    def note(self, worker: int, place: Place) -> None:
        if place.passed >> _TOKEN_BITS or place.shard >> 63 - _TOKEN_BITS:
            return
        slot = place.passed // self._window % KEPT
        self._places[worker, slot] = place.shard << _TOKEN_BITS | place.passed

    def last_before(self, worker: int, tokens: int) -> Place:
        """Return the last place known of a worker that is not after this many of its tokens."""
        best = BEGIN
        for number in self._places[worker].tolist():
            place = Place(number >> _TOKEN_BITS, number & (1 << _TOKEN_BITS) - 1)
            if place.passed <= tokens:
                best = max(best, place)
        return best

    def state(self, sequences: Sequence[int]) -> list[list[int]]:
        """Return ``[worker, shard, passed]`` for each worker whose next sequence, of the given numbers, does not begin
        with its first shard."""
        found = []
        for worker, sequence in enumerate(sequences):
            place = self.last_before(worker, int(sequence) * self._window)
            if place != BEGIN:
                found.append([worker, *place])
        return found

    def load(self, state: Iterable[Sequence[int]]) -> None:
        for worker, shard, passed in state:
            self.note(worker, Place(shard, passed))
