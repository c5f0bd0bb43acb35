"""Streamed samples: every token once an epoch, and sample i a pure function of (seed, i), however it is asked for."""

import gzip
import itertools
import json
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.utils.data import DataLoader, Subset

from tape_ds.data.order import generator
from tape_ds.data.pack import cut
from tape_ds.data.shard_places import Place, ShardPlaces
from tape_ds.data.sources import Document, Shard
from tape_ds.data.stream import Stream, StreamedSequences, StreamError, shuffled
from tape_ds.errors import UserError
from tests.data.conftest import build_tokenizer, same

WINDOW = 16
SIZES = [9, 1, 14, 6, 11, 3, 8]  # documents of each shard
BOS = 0


def texts_of(shard, count):
    """Documents nobody else has, of different length: some span sequences, some share one."""
    rng = np.random.default_rng(shard)
    return [f"{shard}.{number} " + "tape " * int(rng.integers(0, 12)) for number in range(count)]


def write(path, texts):
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write(lines)


@pytest.fixture
def folder(tmp_path):
    """Seven shards, every other one compressed."""
    for shard, count in enumerate(SIZES):
        write(tmp_path / f"{shard}.jsonl{'.gz' if shard % 2 else ''}", texts_of(shard, count))
    return tmp_path


@pytest.fixture
def open_sequences(folder, tokenizer):
    def make(spec=f"jsonl:{folder}/*.jsonl*#body", tokenizer=tokenizer, window=WINDOW, **changes):
        settings = {"samples": 120, "seed": 3, "workers": 3} | changes
        return StreamedSequences([spec], tokenizer, window, **settings)

    return make


def documents_of(sequences, number):
    """Texts of a worker's documents in their order, from its sequences; the last, which is cut, is left out."""
    own = range(number, len(sequences), sequences.stream.workers)
    ids = torch.cat([sequences[index]["input_ids"] for index in own])
    begins = torch.nonzero(ids == BOS).flatten().tolist()
    assert begins[0] == 0
    return [
        sequences.stream.tokenizer.decode(ids[a + 1 : b]) for a, b in itertools.pairwise(begins)
    ]


@pytest.mark.parametrize("count", [3, 7])
def test_every_document_is_read_whole_and_once_an_epoch(open_sequences, count):
    sequences = open_sequences(workers=count, samples=count * 200)
    for number in range(count):
        found, visits, epochs = (
            documents_of(sequences, number),
            sequences.stream.visits(number),
            set(),
        )
        while len(found) >= max(SIZES):
            epoch, shard = next(visits)
            epochs.add(epoch)
            assert Counter(found[: SIZES[shard]]) == Counter(texts_of(shard, SIZES[shard]))
            found = found[SIZES[shard] :]
        assert len(epochs) >= 2


@pytest.mark.parametrize("workers", [3, 100])
def test_workers_share_the_shards_of_every_epoch(open_sequences, workers):
    stream = open_sequences(workers=workers).stream
    assert stream.workers == min(workers, 7)
    read = Counter()
    for number in range(stream.workers):
        for epoch, shard in stream.visits(number):
            if epoch == 5:
                break
            read[epoch, shard] += 1
    assert read == Counter((epoch, shard) for epoch in range(5) for shard in range(7))


def test_held_out_files_never_train(tokenizer):
    sequences = StreamedSequences(["stdlib"], tokenizer, WINDOW, samples=1, seed=0)
    names = {shard.name for shard in sequences.stream.shards}
    assert "ast.py" in names and not names & {"typing.py", "inspect.py"}


def test_a_forked_worker_leaves_our_files_alone(open_sequences, folder, monkeypatch):
    """Forked while a stream worker reads, a process that read on would move the place in the file they share."""
    monkeypatch.setattr("tape_ds.data.stream.BUFFER_DOCUMENTS", 1)
    write(folder / "large.jsonl", texts_of(7, 1500))

    def large():
        return open_sequences(spec=f"jsonl:{folder}/large.jsonl#body", window=96, samples=150)

    expected, sequences = list(large()), large()
    assert same(sequences[0], expected[0])
    found = list(DataLoader(sequences, sampler=range(60, 150), batch_size=None, num_workers=1))
    assert all(same(one, other) for one, other in zip(found, expected[60:], strict=True))
    assert all(same(sequences[index], expected[index]) for index in range(1, 150))


@pytest.mark.parametrize("processes", [0, 1])
def test_documents_that_a_resume_reads_again_are_counted_for_the_watchdog(
    open_sequences, processes
):
    sequences = open_sequences(samples=1000)
    next(iter(DataLoader(Subset(sequences, [999]), num_workers=processes)))
    assert sequences.documents_read() > sum(SIZES)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_resume_reads_on_from_the_shard_that_it_was_in(open_sequences, processes):
    """It read and tokenised again everything from the first step, hours at day five of a large corpus. What it notes
    for that is known to the process that saves, and changes no sample."""
    expected = list(open_sequences(samples=1000))
    first = open_sequences(samples=1000)
    list(DataLoader(Subset(first, range(600)), num_workers=processes, batch_size=None))
    places = json.loads(json.dumps(first.places(600)))
    assert len(places["shards"]) == 3

    resumed = open_sequences(samples=1000)
    resumed.load_places(places)
    for index in range(600, 603):  # one of each worker
        assert same(resumed[index], expected[index])
    assert resumed.documents_read() <= 3 * 2 * max(SIZES), "a shard and its neighbour at most"
    assert all(same(resumed[index], expected[index]) for index in (603, 999, 5, 300)), (
        "any other, too"
    )

    plain = open_sequences(samples=1000)
    assert plain.places(600)["shards"] == []
    other = open_sequences(samples=1000, seed=4)
    other.load_places(places)
    assert other.places(600)["shards"] == [], "a run of other numbers begins its shards elsewhere"


def test_places_are_of_the_past():
    """Loader processes read ahead of the training: a shard that begins later than the sample is not a place for it."""
    places = ShardPlaces(workers=2, window=10)
    for number, passed in enumerate([0, 4, 25, 31, 38, 700]):
        places.note(1, Place(number, passed))
    assert [places.last_before(1, tokens) for tokens in (0, 24, 25, 39)] == [
        (0, 0),
        (1, 4),
        (2, 25),
        (4, 38),
    ]
    assert places.last_before(0, 99) == (0, 0)
    assert places.state([5, 3]) == [[1, 2, 25]] and places.state([0, 0]) == []
    places.note(1, Place(9, 2**40))  # more than a place can tell
    assert places.last_before(1, 2**50) == (5, 700)


def test_unreadable_line_is_named_through_a_loader_process(open_sequences, folder):
    with (folder / "2.jsonl").open("a") as file:
        file.write('{"body": "cut\n')
    loader = DataLoader(open_sequences(samples=1000), num_workers=1, batch_size=None)
    with pytest.raises(UserError) as caught:
        list(loader)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and "2.jsonl:15 is not JSON" in lines[1]


def test_data_without_tokens_are_refused(open_sequences, folder):
    plain = build_tokenizer(bos=False)
    for name in ("e", "f"):
        write(folder / f"{name}.jsonl", ["", ""])
    sequences = open_sequences(spec=f"jsonl:{folder}/[ef].jsonl#body", tokenizer=plain, workers=2)
    with pytest.raises(StreamError, match="no document has any token"):
        sequences[0]


def documents(count, characters=1):
    return [Document(str(number), "x" * characters) for number in range(count)]


def order(found):
    return [int(document.name) for document in found]


@pytest.fixture
def stream(tokenizer):
    """Five shards, among them one without documents, one of a long document and one of empty texts."""
    texts = [
        [f"{shard}.{number} " + "tape " * (3 * number) for number in range(5)] for shard in range(2)
    ]
    texts += [[], ["long " * 20], ["", ""]]

    def shard(number):
        return Shard(
            str(number),
            lambda: (Document(f"{number}:{at}", text) for at, text in enumerate(texts[number])),
        )

    return Stream([shard(number) for number in range(5)], tokenizer, window=16, seed=3, workers=2)


def sequences_of(stream, number, first, last):
    return list(
        itertools.islice(
            cut(stream.tokens(number, skip=first * stream.window), stream.window), last - first
        )
    )


def test_golden_order(stream):
    """The very orders of seed 3: a change here changes every run's data and must be meant."""
    visits = stream.visits(0)
    assert [next(visits) for _ in range(6)] == [(0, 0), (0, 4), (0, 3), (1, 1), (1, 2), (1, 0)]
    assert order(shuffled(documents(8), generator(3, 3, 0, 5))) == [7, 5, 0, 3, 6, 2, 1, 4]


def test_shuffling_loses_and_doubles_nothing(monkeypatch):
    for buffer in (1, 2, 7, 100):
        monkeypatch.setattr("tape_ds.data.stream.BUFFER_DOCUMENTS", buffer)
        assert sorted(order(shuffled(documents(50), np.random.default_rng(0)))) == list(range(50))
    assert list(shuffled([], np.random.default_rng(0))) == []


def test_shuffling_within_the_buffer_is_uniform():
    first = [order(shuffled(documents(5), np.random.default_rng(seed)))[0] for seed in range(500)]
    assert chisquare(np.bincount(first, minlength=5)).pvalue > 1e-3


@pytest.mark.parametrize(("limit", "value"), [("BUFFER_DOCUMENTS", 6), ("BUFFER_CHARACTERS", 60)])
def test_the_buffer_is_bounded(monkeypatch, limit, value):
    """With room for six, document n is not met before n - 6 others have left."""
    monkeypatch.setattr(f"tape_ds.data.stream.{limit}", value)
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


def test_resuming_at_any_sequence(stream):
    expected = sequences_of(stream, 0, 0, 60)
    for first in range(60):
        found = sequences_of(stream, 0, first, min(first + 3, 60))
        assert all(map(same, found, expected[first : first + 3]))


def test_a_worker_of_empty_shards_waits_for_one_that_is_not(tokenizer):
    plain = Shard("full", lambda: iter([Document("a", "tape tape tape")]))
    empty = [Shard(f"empty{number}", lambda: iter(())) for number in range(4)]
    for number in range(5):
        found = sequences_of(Stream([*empty, plain], tokenizer, 4, seed=0, workers=5), number, 0, 2)
        assert all(len(sequence["input_ids"]) == 4 for sequence in found)
    assert sequences_of(Stream(empty, tokenizer, 4, seed=0, workers=2), 0, 0, 2) == []
