"""A shard of prepared data: its rows, its end, its bytes, and disks that fail."""

from pathlib import Path

import datasets
import numpy as np
import pytest

from tape_ds.data import shard_file
from tape_ds.data.packing import document_features, encode
from tape_ds.data.sources import Document
from tape_ds.errors import UserError
from tests.data.conftest import build_tokenizer


def rows(*lengths):
    """A document of each length, filled with its number."""
    for number, length in enumerate(lengths):
        yield Document(f"d{number}", ""), np.full(length, number, np.int32)


def read(path):
    return datasets.Dataset.from_file(str(path))


def test_rows_are_the_documents(tmp_path):
    written = shard_file.write(tmp_path / "a.arrow", rows(2, 0, 3), 100)
    assert written == shard_file.Written(read=3, documents=2, tokens=5)
    found = read(tmp_path / "a.arrow")
    assert found.features == document_features()
    assert found.to_dict() == {"name": ["d0", "d2"], "input_ids": [[0, 0], [2, 2, 2]]}


@pytest.mark.parametrize(
    ("limit", "read_", "tokens"), [(1, 1, 3), (3, 1, 3), (4, 3, 7), (7, 3, 7), (8, 4, 9), (99, 5, 9)]
)
def test_ends_with_the_document_that_reaches_the_limit(tmp_path, limit, read_, tokens):
    left = rows(3, 0, 4, 2, 0)
    written = shard_file.write(tmp_path / "a.arrow", left, limit)
    assert (written.read, written.tokens) == (read_, tokens)
    assert len(list(left)) == 5 - read_, "the rest is left to the next shard"
    assert shard_file.measure(tmp_path / "a.arrow") == (written.documents, tokens)


def test_nothing_to_write_is_a_shard_of_nothing(tmp_path):
    assert shard_file.write(tmp_path / "a.arrow", rows(0, 0), 5) == shard_file.Written(2, 0, 0)
    assert shard_file.measure(tmp_path / "a.arrow") == (0, 0)


def test_batches_change_no_row(tmp_path, monkeypatch):
    lengths = [int(n) for n in np.random.default_rng(0).integers(0, 40, 300)]
    shard_file.write(tmp_path / "whole.arrow", rows(*lengths), 10**6)
    monkeypatch.setattr(shard_file, "_BATCH_DOCUMENTS", 7)
    monkeypatch.setattr(shard_file, "_BATCH_TOKENS", 64)
    shard_file.write(tmp_path / "cut.arrow", rows(*lengths), 10**6)
    assert read(tmp_path / "cut.arrow").to_dict() == read(tmp_path / "whole.arrow").to_dict()
    assert read(tmp_path / "cut.arrow").data.column("input_ids").num_chunks > 20


def test_bytes_do_not_depend_on_the_tokenizers_batches(tmp_path, monkeypatch):
    """A shard that a resumed run begins is batched differently than in the run that was killed."""
    documents = [Document(str(n), f"def f{n}(a, b): return {n}" * (n % 5)) for n in range(40)]
    shard_file.write(tmp_path / "one.arrow", encode(documents, build_tokenizer()), 10**6)
    monkeypatch.setattr("tape_ds.data.packing._BATCH_DOCUMENTS", 3)
    shard_file.write(tmp_path / "two.arrow", encode(documents, build_tokenizer()), 10**6)
    assert (tmp_path / "one.arrow").read_bytes() == (tmp_path / "two.arrow").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_full_disk():
    with pytest.raises(UserError, match=r"output = '/dev': the disk of /dev is full \(.* free\)") as caught:
        shard_file.write(Path("/dev/full"), rows(5), 100)
    assert caught.value.problems[0].field == "output"


def test_what_reads_back_differently_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_file, "measure", lambda path: (1, 2))
    with pytest.raises(UserError, match=r"a\.arrow reads back as \(1, 2\)"):
        shard_file.write(tmp_path / "a.arrow", rows(5), 100)


def test_errors_of_the_data_are_not_the_disks(tmp_path):
    def broken():
        yield from rows(5)
        raise ConnectionError("the hub is away")

    with pytest.raises(ConnectionError, match="the hub is away"):
        shard_file.write(tmp_path / "a.arrow", broken(), 100)
