"""The long-document filter: which documents, how much was read, and when nothing is read again."""

import json

import datasets
import numpy as np
import pytest

from tape_ds.data import tokenized
from tape_ds.data.pack import pack
from tape_ds.data.selection import select, spread, token_counts, upsampled, with_copies
from tape_ds.errors import UserError
from tests.data.conftest import CountingTokenizer, build_tokenizer

LINES = [
    "x",
    "def add(a, b): return a + b",
    "y = 1",
    "class Tape: position = 0\n" * 3,
    "for letter in the alphabet: skip",
    "z",
]


@pytest.fixture
def lines(tmp_path):
    """Data spec of six documents of 2, many, few, many, many and 2 tokens."""
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in LINES))
    return f"jsonl:{tmp_path}/d.jsonl#text"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def sizes():
    backend = build_tokenizer().backend_tokenizer  # asked itself, so that the count of texts stays
    return [len(backend.encode(text).ids) for text in LINES]


def folders(cache):
    return sorted(path.name.split("-")[0] for path in cache.iterdir() if path.is_dir())


def kept(selection):
    return [int(name.rpartition(":")[2]) - 1 for name in selection.documents["name"]]


def test_short_documents_are_left_out_and_counted(lines, tokenizer, cache):
    least = 12
    long = [n for n, size in enumerate(sizes()) if size >= least]
    assert len(long) == 3
    found = select([lines], tokenizer, "train", cache, least)
    assert kept(found) == long
    assert (found.read_documents, found.read_tokens) == (6, sum(sizes()))
    assert (
        found.tokens == sum(sizes()[n] for n in long) == sum(map(len, found.documents["input_ids"]))
    )
    everything = select([lines], tokenizer, "train", cache)
    assert kept(everything) == list(range(6)) and everything.tokens == everything.read_tokens
    assert folders(cache) == ["documents"], "the filter needs no tokens of its own"
    assert CountingTokenizer.texts == 6


@pytest.mark.parametrize("count", [1, 3])
def test_reading_ends_with_the_last_document_that_is_wanted(
    lines, tokenizer, cache, count, monkeypatch
):
    monkeypatch.setattr(tokenized, "_BATCH_DOCUMENTS", 1)
    long = [n for n, size in enumerate(sizes()) if size >= 12][:count]
    found = select([lines], tokenizer, "train", cache, 12, max_documents=count)
    assert kept(found) == long and found.tokens == sum(sizes()[n] for n in long)
    assert (found.read_documents, found.read_tokens) == (long[-1] + 1, sum(sizes()[: long[-1] + 1]))
    assert CountingTokenizer.texts == long[-1] + 1
    again = select([lines], tokenizer, "train", cache, 12, max_documents=count)
    assert CountingTokenizer.texts == long[-1] + 1, "the second time nothing is read"
    counts = [(each.tokens, each.read_documents, each.read_tokens) for each in (found, again)]
    assert counts[0] == counts[1] and kept(again) == long


def test_limits_are_part_of_the_key(lines, tokenizer, cache):
    assert kept(select([lines], tokenizer, "train", cache, 12, max_documents=2)) == [1, 3]
    assert kept(select([lines], tokenizer, "train", cache, 12, max_documents=1)) == [1]
    assert kept(select([lines], tokenizer, "train", cache, 1, max_documents=2)) == [0, 1]
    assert folders(cache) == ["first"] * 3


def test_token_ids_are_counted_where_they_lie(tokenizer, cache, tmp_path):
    rows = {"input_ids": [[5, 6], [7, 8, 9], [5] * 9, [6] * 8]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "ids"))
    found = select([f"arrow:{tmp_path}/ids"], tokenizer, "train", cache, 3, max_documents=2)
    assert list(found.documents["input_ids"]) == [[7, 8, 9], [5] * 9]
    assert (found.tokens, found.read_documents, found.read_tokens) == (12, 3, 14)
    assert token_counts(datasets.Dataset.from_dict(rows)).tolist() == [2, 3, 9, 8]


def test_numbers_are_spread_evenly_and_the_same_each_time():
    assert (
        spread(10, 3).tolist() == [0, 3, 6]
        and spread(10, 0).tolist() == []
        and len(spread(3, 5)) == 3
    )


@pytest.mark.parametrize("count", [None, 5])
def test_nothing_long_enough(lines, tokenizer, cache, count):
    with pytest.raises(UserError, match=r"eval_data = .*none of 6 documents"):
        select([lines], tokenizer, "heldout", cache, 5000, count)


def test_long_documents_are_read_several_times():
    """Worked by hand, twice from 8 tokens, three times from 16, not at all again from 40: all documents first, then the
    second copies, then the third."""
    lengths = np.array([7, 8, 16, 40, 15, 39])
    assert with_copies(lengths, {8: 2, 16: 3, 40: 1}).tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
        1,
        2,
        4,
        5,
        2,
        5,
    ]
    assert with_copies(lengths, {}).tolist() == [0, 1, 2, 3, 4, 5]
    assert with_copies(np.zeros(0, np.int64), {8: 2}).tolist() == []


def test_copies_are_documents_of_their_own(lines, tokenizer, cache):
    """Each is packed as any other, and the counts of what was read are those of the corpus."""
    found = select([lines], tokenizer, "train", cache)
    long = [n for n, size in enumerate(sizes()) if size >= 12]
    documents = upsampled(found.documents, {12: 2})
    assert [int(name.rpartition(":")[2]) - 1 for name in documents["name"]] == [*range(6), *long]
    assert token_counts(documents).tolist() == [sizes()[n] for n in [*range(6), *long]]
    plain, more = (
        sum(map(len, pack(each, 9, cache, "whole")["input_ids"]))
        for each in (found.documents, documents)
    )
    assert more - plain == sum(sizes()[n] for n in long)
    assert upsampled(found.documents, {}) is found.documents
