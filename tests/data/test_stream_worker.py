"""One stream worker: the order of its shards and documents, and resuming at any row."""

import numpy as np
import pytest
from scipy.stats import chisquare

from tape_ds.data import stream_worker
from tape_ds.data.dataset import generator
from tape_ds.data.sources import Document, Shard
from tape_ds.data.stream_worker import Stream, StreamWorker, shuffled

ROWS = 60


def documents(count, characters=1):
    return [Document(str(number), "x" * characters) for number in range(count)]


def order(found):
    return [int(document.name) for document in found]


@pytest.fixture
def stream(tokenizer):
    """Five shards, among them one without documents, one of a long document and one of empty texts."""
    texts = [[f"{shard}.{number} " + "tape " * (3 * number) for number in range(5)] for shard in range(2)]
    texts += [[], ["long " * 20], ["", ""]]

    def shard(number):
        return Shard(str(number), lambda: (Document(f"{number}:{at}", text) for at, text in enumerate(texts[number])))

    return Stream([shard(number) for number in range(5)], tokenizer, window=16, seed=3, workers=2)


def rows(stream, number, first, last):
    reader = StreamWorker(stream, number, first)
    return [reader.read(row) for row in range(first, last)]


def same(some, others):
    pairs = list(zip(some, others, strict=True))
    return all(np.array_equal(one[name], other[name]) for one, other in pairs for name in one)


# --- order ----------------------------------------------------------------------------------------------------------


def test_golden_order(stream):
    """The very orders of seed 3: a change here changes every run's data and must be meant."""
    visits = stream.visits(0)
    assert [next(visits) for _ in range(6)] == [(0, 0), (0, 4), (0, 3), (1, 1), (1, 2), (1, 0)]
    assert order(shuffled(documents(8), generator(3, 3, 0, 5))) == [7, 5, 0, 3, 6, 2, 1, 4]
    orders = [[document.name for document in stream.documents(*visit)] for visit in ((0, 0), (1, 0), (0, 1))]
    assert orders == [
        ["0:2", "0:0", "0:4", "0:3", "0:1"],
        ["0:2", "0:1", "0:0", "0:4", "0:3"],
        ["1:0", "1:3", "1:1", "1:4", "1:2"],
    ]


def test_shuffling_loses_and_doubles_nothing(monkeypatch):
    for buffer in (1, 2, 7, 100):
        monkeypatch.setattr(stream_worker, "BUFFER_DOCUMENTS", buffer)
        assert sorted(order(shuffled(documents(50), np.random.default_rng(0)))) == list(range(50))
    assert list(shuffled([], np.random.default_rng(0))) == []


def test_shuffling_within_the_buffer_is_uniform():
    first = [order(shuffled(documents(5), np.random.default_rng(seed)))[0] for seed in range(500)]
    assert chisquare(np.bincount(first, minlength=5)).pvalue > 1e-3


@pytest.mark.parametrize(("limit", "value"), [("BUFFER_DOCUMENTS", 6), ("BUFFER_CHARACTERS", 60)])
def test_the_buffer_is_bounded(monkeypatch, limit, value):
    """With room for six, document n is not met before n - 6 others have left."""
    monkeypatch.setattr(stream_worker, limit, value)
    read = []

    def counted():
        for document in documents(40, characters=10):
            read.append(document)
            yield document

    found = []
    for document in shuffled(counted(), np.random.default_rng(1)):
        found.append(document)
        assert len(read) - len(found) <= 6
    assert order(found) != sorted(order(found))


def test_a_document_larger_than_the_buffer_passes(monkeypatch):
    monkeypatch.setattr(stream_worker, "BUFFER_CHARACTERS", 5)
    assert order(shuffled(documents(4, characters=9), np.random.default_rng(0))) == [0, 1, 2, 3]


# --- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_resuming_at_any_row(stream, number):
    expected = rows(stream, number, 0, ROWS)
    for first in range(ROWS):
        assert same(rows(stream, number, first, min(first + 3, ROWS)), expected[first : first + 3])


def test_rows_between_are_passed(stream):
    reader = StreamWorker(stream, 0, 0)
    expected = rows(stream, 0, 0, 12)
    assert same([reader.read(2), reader.read(3), reader.read(11)], [expected[2], expected[3], expected[11]])
    assert reader.next == 12


def test_a_worker_of_empty_shards_waits_for_one_that_is_not(tokenizer):
    """Dealt only empty shards in one epoch, it has others in the next; with nothing else it ends."""
    plain = Shard("full", lambda: iter([Document("a", "tape tape tape")]))
    empty = [Shard(f"empty{number}", lambda: iter(())) for number in range(4)]
    for number in range(5):
        found = rows(Stream([*empty, plain], tokenizer, 4, seed=0, workers=5), number, 0, 2)
        assert all(len(row["input_ids"]) == 4 for row in found)
    assert rows(Stream(empty, tokenizer, 4, seed=0, workers=2), 0, 0, 2) == [None, None]
