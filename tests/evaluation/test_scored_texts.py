"""Texts for perplexity: BOS and EOS are removed before lengths are counted and cut."""

import datasets
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
    """Five documents of ids."""
    rows = {"input_ids": [[0, 5, 1], [6, 7], [8], [9, 10, 11], [0, 12]]}
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "rows")
    return parse(f"arrow:{tmp_path}/rows", "--data")


def test_ends_are_removed_before_documents_are_cut(source):
    texts = read(source, build_tokenizer(), **ALL, bare=True, max_tokens=2)
    assert [text.ids.tolist() for text in texts] == [[5], [6, 7], [8], [9, 10], [12]]


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
