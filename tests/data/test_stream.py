"""Streamed samples: every token once an epoch, and sample i a pure function of (seed, i), however it is asked for."""

import gzip
import itertools
import json
import pickle
import time
from collections import Counter

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler
from scipy.stats import chisquare
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset

from tape_ds.data.order import collate, generator
from tape_ds.data.pack import cut
from tape_ds.data.sources import Document, Shard
from tape_ds.data.stream import Stream, StreamedSequences, StreamError, shuffled
from tape_ds.errors import UserError
from tape_ds.resilience.watchdog import Watchdog
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
    """Makes the same sequences over ``folder``, with changes."""

    def make(**changes):
        settings = {"samples": 120, "seed": 3, "workers": 3, "specs": [f"jsonl:{folder}/*.jsonl*#body"], **changes}
        return StreamedSequences(
            settings.pop("specs"), settings.pop("tokenizer", tokenizer), settings.pop("window", WINDOW), **settings
        )

    return make


def documents_of(sequences, number):
    """Texts of a worker's documents in their order, put together from its sequences, the cut one at the end left
    out."""
    ids = torch.cat(
        [sequences[index]["input_ids"] for index in range(number, len(sequences), sequences.stream.workers)]
    )
    begins = torch.nonzero(ids == BOS).flatten().tolist()
    assert begins[0] == 0
    tokenizer = sequences.stream.tokenizer
    return [tokenizer.decode(ids[a + 1 : b]) for a, b in itertools.pairwise(begins)]


# --- contents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 7])
def test_every_document_is_read_whole_and_once_an_epoch(open_sequences, count):
    """Put together again, a worker's sequences are its shards' documents, epoch after epoch, with nothing lost
    between."""
    sequences = open_sequences(workers=count, samples=count * 200)
    for number in range(count):
        found = documents_of(sequences, number)
        visits = sequences.stream.visits(number)
        epochs = set()
        while len(found) >= max(SIZES):
            epoch, shard = next(visits)
            epochs.add(epoch)
            assert Counter(found[: SIZES[shard]]) == Counter(texts_of(shard, SIZES[shard]))
            found = found[SIZES[shard] :]
        assert len(epochs) >= 2


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_workers_share_the_shards_of_every_epoch(open_sequences, count):
    stream = open_sequences(workers=count).stream
    read = Counter()
    for number in range(count):
        for epoch, shard in stream.visits(number):
            if epoch == 5:
                break
            read[epoch, shard] += 1
    assert read == Counter((epoch, shard) for epoch in range(5) for shard in range(7))


def test_item(open_sequences):
    """Full sequences; a document's first token and the sequence's are no targets; positions go on over borders."""
    sequences = open_sequences()
    borders = 0
    for index in range(len(sequences)):
        item = sequences[index]
        ids, labels, owners = item["input_ids"], item["labels"], item["document_ids"]
        assert ids.shape == (WINDOW,)
        no_target = ids == BOS
        no_target[0] = True
        assert torch.equal(labels == -100, no_target)
        assert torch.equal(labels[~no_target], ids[~no_target])
        assert torch.equal(owners.diff(), (ids[1:] == BOS).to(torch.int32))
        assert owners[0] == 0
        assert item["position_ids"].tolist() == list(range(WINDOW))
        borders += int(owners[-1])
    assert borders > 50
    assert {name: values.dtype for name, values in item.items()} == {
        "input_ids": torch.int64,
        "labels": torch.int64,
        "position_ids": torch.int64,
        "document_ids": torch.int32,
    }


def test_more_workers_than_shards_are_as_many_as_shards(open_sequences):
    many = open_sequences(workers=100)
    assert many.stream.workers == 7
    assert same(many[60], open_sequences(workers=7)[60])


def test_held_out_files_never_train(tokenizer):
    sequences = StreamedSequences(["stdlib"], tokenizer, WINDOW, samples=1, seed=0)
    names = {shard.name for shard in sequences.stream.shards}
    assert "ast.py" in names
    assert not names & {"typing.py", "inspect.py"}
    assert sequences[0]["input_ids"].shape == (WINDOW,)


# --- random access --------------------------------------------------------------------------------------------------


def test_order_of_asking_is_irrelevant(open_sequences):
    forwards = list(open_sequences())
    sequences = open_sequences()
    for index in [*reversed(range(0, 120, 7)), *range(0, 120, 5), 119, 0, 119]:
        assert same(sequences[index], forwards[index])
    for index in range(0, 120, 11):
        assert same(open_sequences()[index], forwards[index])


def test_length_of_the_run_changes_no_sample(open_sequences):
    assert same(open_sequences(samples=1000)[17], open_sequences()[17])


def test_pickled_at_any_time(open_sequences):
    sequences = open_sequences()
    expected = [sequences[index] for index in range(40)]
    copy = pickle.loads(pickle.dumps(sequences))
    assert same(copy[39], expected[39])
    assert same(copy[0], expected[0])
    assert same(sequences[40], open_sequences()[40]), "the original reads on"


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_loader_processes_change_nothing(open_sequences, workers):
    expected = list(open_sequences(samples=24))
    batches = list(DataLoader(open_sequences(samples=24), batch_size=4, num_workers=workers, collate_fn=collate))
    assert len(batches) == 6
    for step, batch in enumerate(batches):
        assert same(batch, collate(expected[4 * step : 4 * step + 4]))


def test_a_forked_worker_leaves_our_files_alone(open_sequences, folder, monkeypatch):
    """Forked while a stream worker reads, a process that read on would move the place in the file they share."""
    monkeypatch.setattr("tape_ds.data.stream.BUFFER_DOCUMENTS", 1)
    write(folder / "large.jsonl", texts_of(7, 1500))

    def large():
        return open_sequences(specs=[f"jsonl:{folder}/large.jsonl#body"], window=96, samples=150)

    expected, sequences = list(large()), large()
    assert same(sequences[0], expected[0])
    found = list(DataLoader(sequences, sampler=range(60, 150), batch_size=None, num_workers=1))
    assert all(same(one, other) for one, other in zip(found, expected[60:], strict=True))
    assert all(same(sequences[index], expected[index]) for index in range(1, 150))


# --- ranks and resuming ---------------------------------------------------------------------------------------------

GLOBAL_BATCH = 12
MICRO_BATCH = {1: 4, 2: 3, 3: 4}  # by number of ranks; the rest is accumulation


def batches_of_ranks(make, ranks, steps):
    """Samples of each global step in ``steps``, read by so many ranks as accelerate shards and skips them."""
    micro = MICRO_BATCH[ranks]
    accumulated = GLOBAL_BATCH // ranks // micro
    loaders = []
    for rank in range(ranks):
        sequences = make()
        shard = BatchSamplerShard(BatchSampler(SequentialSampler(sequences), micro, True), ranks, rank)
        sampler = SkipBatchSampler(shard, skip_batches=steps.start * accumulated)
        loaders.append(iter(DataLoader(sequences, batch_sampler=sampler, collate_fn=list)))
    for _ in steps:
        yield [item for loader in loaders for _ in range(accumulated) for item in next(loader)]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1), (2, 2)])
def test_resumed_on_any_number_of_ranks(open_sequences, before, after):
    """A run of two parts sees the very samples of an unbroken one: no sample twice, none skipped."""
    expected = list(open_sequences())
    step = 0
    for ranks, steps in ((before, range(4)), (after, range(4, 10))):
        for items in batches_of_ranks(open_sequences, ranks, steps):
            found = sorted(tuple(item["input_ids"].tolist()) for item in items)
            wanted = expected[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH]
            assert found == sorted(tuple(item["input_ids"].tolist()) for item in wanted)
            step += 1
    assert step == 10


@pytest.mark.parametrize("processes", [0, 1])
def test_a_resume_may_tokenise_for_longer_than_the_watchdog_waits(
    open_sequences, tokenizer, tmp_path, monkeypatch, processes
):
    """Every rank was ended in it, and started again in vain, for ever."""

    def slow(*texts, **settings):
        time.sleep(0.1)
        return tokenizer(*texts, **settings)

    slow.bos_token_id = None
    ended = []
    monkeypatch.setattr(Watchdog, "_end", lambda self, stalled: ended.append(stalled))
    sequences, began = open_sequences(tokenizer=slow, samples=1000), time.monotonic()
    with Watchdog(tmp_path, 0, 1, 1.0, work=sequences.documents_read) as dog:
        dog.beat(40, "data")
        next(iter(DataLoader(Subset(sequences, [999]), num_workers=processes)))
    assert time.monotonic() - began > 2 and ended == []


def test_a_rank_opens_its_own_workers_alone(open_sequences, monkeypatch):
    """Two ranks with micro-batches of 3 over 6 stream workers: each reads three of them."""
    opened = []
    real = Stream.tokens

    def spy(stream, number, skip):
        opened.append(number)
        return real(stream, number, skip)

    monkeypatch.setattr(Stream, "tokens", spy)
    for rank, own in ((0, [0, 1, 2]), (1, [3, 4, 5])):
        sequences = open_sequences(workers=6, samples=60)
        opened.clear()
        for batch in BatchSamplerShard(BatchSampler(SequentialSampler(sequences), 3, True), 2, rank):
            for index in batch:
                sequences[index]
        assert opened == own


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_line_is_named(open_sequences, folder, workers):
    """The same message with and without a loader process, which hands on nothing but a text."""
    with (folder / "2.jsonl").open("a") as file:
        file.write('{"body": "cut\n')
    loader = DataLoader(open_sequences(samples=1000), num_workers=workers, batch_size=None)
    with pytest.raises(UserError) as caught:
        list(loader)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the training data cannot be read on, and the run stops here:"
    assert lines[1].startswith(f"  1. train_data = 'jsonl:{folder}/*.jsonl*#body': 2.jsonl:15 is not JSON")
    assert lines[2] == "      remedy: correct or remove that line"
    assert len(lines) == 3


def test_cut_archive_is_named(open_sequences, folder):
    """Longer than what is looked at before work starts, where a shorter one is refused."""
    write(folder / "3.jsonl.gz", [*texts_of(3, 6), *("tape " * length for length in range(2000, 2100, 10))])
    raw = (folder / "3.jsonl.gz").read_bytes()
    (folder / "3.jsonl.gz").write_bytes(raw[:-9])
    with pytest.raises(StreamError, match=r"3\.jsonl\.gz cannot be read: Compressed file ended"):
        list(open_sequences(samples=1000))


def test_reading_does_not_go_on_after_an_error(open_sequences, folder):
    """The line mended, the same object gives the right sample instead of what came after the gap."""
    sequences = open_sequences(workers=1, samples=1000)
    good = (folder / "2.jsonl").read_text()
    (folder / "2.jsonl").write_text("no JSON\n" + good)
    with pytest.raises(StreamError):
        list(sequences)
    (folder / "2.jsonl").write_text(good)
    assert same(sequences[80], open_sequences(workers=1)[80])


def test_data_without_tokens_are_refused(open_sequences, folder):
    """Empty shards among others are passed; nothing but empty ones would be read for ever."""
    plain = build_tokenizer(bos=False)
    for name in ("e", "f"):
        write(folder / f"{name}.jsonl", ["", ""])
    sequences = open_sequences(specs=[f"jsonl:{folder}/[0ef].jsonl#body"], tokenizer=plain, workers=3)
    assert all(sequences[index]["input_ids"].shape == (WINDOW,) for index in range(30))
    sequences = open_sequences(specs=[f"jsonl:{folder}/[ef].jsonl#body"], tokenizer=plain, workers=2)
    with pytest.raises(StreamError, match="no document has any token"):
        sequences[0]


def test_samples_that_there_are_not(open_sequences):
    for index in (-1, 120):
        with pytest.raises(IndexError):
            open_sequences()[index]


# --- the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(folder, monkeypatch):
    """Stands for the network: the shards of ``folder``, opened by the real streaming reader."""
    real = datasets.load_dataset

    def load_dataset(name, config, split, revision, streaming):
        files = sorted(str(path) for path in folder.glob("*.jsonl*"))
        assert (name, config, split, revision, streaming) == ("allenai/c4", "en", "train", None, True)
        return real("json", data_files=files, split="train", streaming=True)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_hub_shards_are_streamed(hub, open_sequences, workers):
    """The samples are those of the same files read directly, also where the library would split rows over workers."""
    expected = list(open_sequences(samples=48))
    sequences = open_sequences(specs=["hub:allenai/c4:en#body"], samples=48)
    assert [shard.name for shard in sequences.stream.shards][:2] == ["allenai/c4:train:0", "allenai/c4:train:1"]
    sequences[7]
    found = [
        item for batch in DataLoader(sequences, batch_size=6, num_workers=workers, collate_fn=list) for item in batch
    ]
    assert len(found) == 48
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))


def test_first_documents_of_the_hub_are_one_shard(hub, open_sequences):
    sequences = open_sequences(specs=["hub:allenai/c4:en:train[:13]#body"], workers=4)
    assert sequences.stream.workers == 1
    assert set(documents_of(sequences, 0)) == {*texts_of(0, 9), *texts_of(1, 1), *texts_of(2, 14)[:3]}


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


def sequences_of(stream, number, first, last):
    return list(itertools.islice(cut(stream.tokens(number, skip=first * stream.window), stream.window), last - first))


# --- order of a worker ------------------------------------------------------------------------------------------------


def test_golden_order(stream):
    """The very orders of seed 3: a change here changes every run's data and must be meant."""
    visits = stream.visits(0)
    assert [next(visits) for _ in range(6)] == [(0, 0), (0, 4), (0, 3), (1, 1), (1, 2), (1, 0)]
    assert order(shuffled(documents(8), generator(3, 3, 0, 5))) == [7, 5, 0, 3, 6, 2, 1, 4]
    visits = ((0, 0), (1, 0), (0, 1))
    orders = [
        [document.name for document in shuffled(stream.shards[shard].documents(), generator(3, 3, epoch, shard))]
        for epoch, shard in visits
    ]
    assert orders == [
        ["0:2", "0:0", "0:4", "0:3", "0:1"],
        ["0:2", "0:1", "0:0", "0:4", "0:3"],
        ["1:0", "1:3", "1:1", "1:4", "1:2"],
    ]


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


# --- resuming a worker ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_resuming_at_any_sequence(stream, number):
    expected = sequences_of(stream, number, 0, 60)
    for first in range(60):
        found = sequences_of(stream, number, first, min(first + 3, 60))
        assert all(map(same, found, expected[first : first + 3]))


def test_a_worker_of_empty_shards_waits_for_one_that_is_not(tokenizer):
    """Dealt only empty shards in one epoch, it has others in the next; with nothing else it ends."""
    plain = Shard("full", lambda: iter([Document("a", "tape tape tape")]))
    empty = [Shard(f"empty{number}", lambda: iter(())) for number in range(4)]
    for number in range(5):
        found = sequences_of(Stream([*empty, plain], tokenizer, 4, seed=0, workers=5), number, 0, 2)
        assert all(len(sequence["input_ids"]) == 4 for sequence in found)
    assert sequences_of(Stream(empty, tokenizer, 4, seed=0, workers=2), 0, 0, 2) == []
