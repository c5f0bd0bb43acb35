"""Texts for perplexity: names, cuts and joins of a source's documents."""

import datasets
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from tape_ds.data.sources import parse
from tape_ds.errors import UserError
from tape_ds.scoring.window_jobs import read_texts as read
from tests.data.conftest import build_tokenizer

ALL = {"split": "heldout", "min_tokens": 1}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path):
    """Five documents of ids, two of one name."""
    rows = {"name": ["x", "y", "x", "z", "x"], "input_ids": [[0, 5, 1], [6, 7], [8], [9, 10, 11], [0, 12]]}
    features = datasets.Features(
        {"name": datasets.Value("string"), "input_ids": datasets.List(datasets.Value("int32"))}
    )
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "rows")
    return parse(f"arrow:{tmp_path}/rows", "--data")


def found(source, **choice):
    return [(text.name, text.ids.tolist(), text.stream) for text in read(source, build_tokenizer(), **ALL | choice)]


def test_every_document_has_a_name_of_its_own(source):
    assert [name for name, _, _ in found(source)] == ["x", "y", "x (2)", "z", "x (3)"]


def test_ends_are_taken_off_before_documents_are_cut(source):
    bare = [ids for _, ids, _ in found(source, bare=True, max_tokens=2)]
    assert bare == [[5], [6, 7], [8], [9, 10], [12]]
    assert next(ids for _, ids, _ in found(source, max_tokens=2)) == [0, 5]


def test_joined_documents_are_streams_in_their_order(source):
    assert found(source, join=2) == [
        ("x to y", [0, 5, 1, 6, 7], True),
        ("x (2) to z", [8, 9, 10, 11], True),
        ("x (3)", [0, 12], True),
    ]
    assert not any(stream for _, _, stream in found(source))


def test_a_file_of_ids_is_a_stream(tmp_path):
    np.array([5, 6, 7], "<u2").tofile(tmp_path / "x.bin")
    assert found(parse(f"bin:{tmp_path}/x.bin", "--data")) == [("x.bin", [5, 6, 7], True)]


@pytest.mark.parametrize("bare", [False, True])
def test_min_tokens_counts_the_text_without_bos_and_eos(bare, tmp_path):
    """PoSE asks for 32,768 tokens of text, and reads each window after its own BOS."""
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    (tmp_path / "x.txt").write_text("a b")
    source = parse(f"text:{tmp_path}/x.txt", "--data")
    (text,) = read(source, tokenizer, **ALL)
    assert text.ids[0] == 0 and text.ids[-1] > 1, "EOS is not text"
    size = len(text.ids) - bare
    (found,) = read(source, tokenizer, **ALL | {"bare": bare, "min_tokens": size})
    assert len(found.ids) == size
    with pytest.raises(UserError, match="none of 1 documents"):
        read(source, tokenizer, **ALL | {"bare": bare, "min_tokens": size + 1})
