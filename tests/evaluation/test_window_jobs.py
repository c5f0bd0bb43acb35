"""Texts for perplexity, without their BOS and EOS, and the figures of their windows."""

import datasets
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from tape_ds.data.sources import parse
from tape_ds.errors import UserError
from tape_ds.scoring.window_jobs import ScoredText, Scoring, figures, plan, read_texts
from tests.data.conftest import build_tokenizer

ALL = {"split": "heldout", "min_tokens": 1}
BLOCKS = Scoring("blocks", 256, None, False, False, None)


def test_golden_figures():
    """Worked by hand: blocks of 4 of documents of 9, 4 and 3 tokens; 9 targets with 18 nats, 6 of them foreseen."""
    texts = {
        "s": [
            ScoredText(name, np.arange(size), False)
            for name, size in (("a", 9), ("b", 4), ("c", 3))
        ]
    }
    jobs = plan(texts, [4], BLOCKS)
    (key,) = jobs
    assert not jobs[key].spans
    found = figures(texts, [4], BLOCKS, jobs, {key: [[5.0, 1], [7.0, 2], [6.0, 3]]})
    (entry,) = found["perplexity"]
    assert (entry["nll"], entry["accuracy"], entry["targets"], entry["windows"]) == (
        2.0,
        6 / 9,
        9,
        3,
    )
    assert entry["documents"] == 2 and entry["standard_error"] == 0.0
    assert entry["left_out"] == {"documents": 1, "names": ["c"], "tokens": 4}
    assert entry["shorter"] == {"documents": 0, "names": []} and found["documents"] == {"s": 3}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_ends_are_removed_before_documents_are_cut(tmp_path):
    rows = {"input_ids": [[0, 5, 1], [6, 7], [8], [9, 10, 11], [0, 12]]}
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "rows")
    source = parse(f"arrow:{tmp_path}/rows", "--data")
    texts = read_texts(source, build_tokenizer(), **ALL, bare=True, max_tokens=2)
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
    (text,) = read_texts(source, tokenizer, **ALL)
    assert text.ids[0] == 0 and text.ids[-1] > 1, "EOS is not text"
    size = len(text.ids) - bare
    (found,) = read_texts(source, tokenizer, **ALL | {"bare": bare, "min_tokens": size})
    assert len(found.ids) == size
    with pytest.raises(UserError, match="none of 1 documents"):
        read_texts(source, tokenizer, **ALL | {"bare": bare, "min_tokens": size + 1})
