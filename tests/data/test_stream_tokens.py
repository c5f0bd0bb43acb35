"""Token ids streamed: as text is, with their own documents, mixed by weight and resumed."""

import numpy as np
import pytest

from tape_ds.data import stream
from tape_ds.data.mix import mix
from tape_ds.data.sources import token_table
from tape_ds.data.stream import StreamedSequences, StreamError
from tests.data.conftest import build_tokenizer, same
from tests.data.sources import token_writers as write

WINDOW = 8


def documents(first):
    """Forty documents whose ids count up from a number of their own; each ends with EOS."""
    return [[*range(first + number, first + number + 1 + number % 9), 1] for number in range(40)]


@pytest.fixture
def specs(tmp_path, monkeypatch):
    """Two megatron files in parts, and a litdata folder."""
    monkeypatch.setattr(token_table, "PART_TOKENS", 50)
    (tmp_path / "a").mkdir()
    for name in ("x", "y"):
        write.megatron(tmp_path / "a" / name, documents(3 if name == "x" else 90), "uint16")
    write.litdata(tmp_path / "b", documents(200), "int32", chunk_rows=7)
    return [f"tokens:{tmp_path}/a", f"tokens:{tmp_path}/b"]


def streamed(specs, samples=60, seed=3, workers=4):
    return StreamedSequences(
        specs, build_tokenizer(), WINDOW, samples=samples, seed=seed, workers=workers
    )


def mixed(specs, samples=60, seed=3):
    entries = [{"source": specs[0], "weight": 3}, {"source": specs[1], "weight": 1}]
    return mix(entries, lambda each, own: streamed(each, samples, own), samples=samples, seed=seed)


def test_every_document_is_read_once_an_epoch_with_its_border(specs):
    """All tokens, each document as a whole or cut where a sequence ends, separated by document ids."""
    sequences = streamed(specs, samples=200, workers=1)
    expected = sorted(ids for first in (3, 90, 200) for ids in documents(first))
    total = sum(map(len, expected))
    tokens, owners = [], []
    for index in range(total // WINDOW + 1):
        item = sequences[index]
        tokens += item["input_ids"].tolist()
        owners += [(index, owner) for owner in item["document_ids"].tolist()]
    ends = [at + 1 for at in range(total) if tokens[at] == 1]
    found = [tokens[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert sorted(found) == expected
    for at in range(1, total):
        if tokens[at - 1] == 1:
            assert owners[at] != owners[at - 1], "a document's border is one in the sequence"


@pytest.mark.parametrize("make", [streamed, mixed])
def test_resumed_in_the_middle_it_reads_the_same(make, specs):
    expected = list(make(specs))
    assert len(expected) == 60 and not same(expected[0], expected[1])
    again = make(specs)
    for index in (37, 12, 59):
        assert same(again[index], expected[index])


@pytest.mark.parametrize("make", [streamed, mixed])
def test_it_is_resumed_from_the_shard_that_it_was_in(make, specs, monkeypatch):
    first = make(specs, samples=400)
    expected = list(first)
    resumed = make(specs, samples=400)
    resumed.load_places(first.places(300))
    begun = []
    shuffle = stream.shuffled
    monkeypatch.setattr(
        stream, "shuffled", lambda rows, *others: begun.append(rows) or shuffle(rows, *others)
    )
    for index in range(300, 308):
        assert same(resumed[index], expected[index])
    with_places = len(begun)
    anew = make(specs, samples=400)
    for index in range(300, 308):
        assert same(anew[index], expected[index])
    assert with_places <= 16, "a shard and its neighbour for each worker"
    assert len(begun) > 4 * with_places


def test_shares_are_the_weights(specs):
    sequences = mixed(specs, samples=4000)
    assert sequences.counts(4000)[0] / 4000 == pytest.approx(0.75, abs=0.02)
    for index in range(60):
        from_second = bool(sequences[index]["input_ids"].max() >= 200)
        assert from_second == (sequences.place(index)[0] == 1)


def test_stored_ids_that_are_skipped_are_not_read(specs, tmp_path, monkeypatch):
    """A resume of a large corpus reads what it needs."""
    read = []
    checked = "tape_ds.data.stream.checked_ids"
    monkeypatch.setattr(
        checked, lambda source, name, ids, size: read.append(len(ids)) or ids.astype(np.int32)
    )
    streamed(specs, samples=200, workers=1)[99]
    assert sum(read) <= 3 * WINDOW + 2 * 10


def test_ids_beyond_the_vocabulary_end_the_run_by_name(tmp_path):
    write.datatrove(tmp_path / "x.ds", [[5, 6], [7, 300], [8] * 20])
    with pytest.raises(
        StreamError,
        match=r"x.ds@2 has token ids 7 \.\. 300, outside the tokenizer's vocabulary of 300",
    ):
        list(streamed([f"tokens:{tmp_path}/x.ds"], samples=3))


def test_documents_that_end_with_eos_are_streamed_so(tmp_path):
    write.bare(tmp_path / "x.bin", documents(5), "uint16")
    (spec,) = [f"tokens:{tmp_path}/x.bin#uint16&end=eos"]
    item = streamed([spec], workers=1)[0]
    borders = np.flatnonzero(np.diff(item["document_ids"].numpy()))
    assert len(borders) and all(item["input_ids"][borders] == 1)
