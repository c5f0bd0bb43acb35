"""Tokenised documents and packed sequences: contents, borders, the cache and several processes at once."""

import json

import datasets
import pytest

from tape_ds.data.pack import pack
from tape_ds.data.tokenized import tokenizer_fingerprint
from tape_ds.errors import UserError
from tests.data.conftest import CountingTokenizer, build_tokenizer, tokenize


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts").mkdir()
    for name, text in {"a": "def add(a, b):", "b": "class Tape: pass\n" * 5, "c": "x"}.items():
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    return f"text:{tmp_path}/texts/*.txt"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def documents(*ids):
    return datasets.Dataset.from_dict({"input_ids": [list(each) for each in ids]})


def folders(cache):
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_ids_are_those_of_the_tokenizer(texts, tokenizer, cache):
    rows = tokenize([texts], tokenizer, "train", cache)
    assert rows["name"] == ["a.txt", "b.txt", "c.txt"]
    assert next(iter(rows["input_ids"])) == tokenizer("def add(a, b):")["input_ids"]
    assert all(ids[0] == tokenizer.bos_token_id for ids in rows["input_ids"]), (
        "the tokenizer's own convention"
    )
    assert all(ids[-1] != tokenizer.eos_token_id for ids in rows["input_ids"]), (
        "and nothing added to it"
    )
    assert rows.features["input_ids"] == datasets.List(datasets.Value("int32"))


@pytest.mark.parametrize("bos", [True, False])
def test_a_bos_that_a_text_begins_with_is_not_doubled(bos, tmp_path, cache, caplog):
    """Rows with ``<s>`` in their text began with two of them where the tokenizer puts one before every text."""
    rows = ["<s>def add(a, b):", "def add(a, b):", "<s>", "def <s><s>"]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    of = build_tokenizer(bos)
    found = tokenize([f"jsonl:{tmp_path}/x.jsonl#text"], of, "train", cache)["input_ids"]
    begun = [row.removeprefix("<s>") for row in rows] if bos else rows
    assert found == [of(row)["input_ids"] for row in begun]
    assert ("2 documents begin with <s>" in caplog.text) == bos


def test_cache_follows_text_tokenizer_and_split(texts, tokenizer, cache, tmp_path):
    tokenize([texts], tokenizer, "train", cache)
    tokenize([texts], build_tokenizer(bos=False), "train", cache)
    tokenize([texts], tokenizer, "heldout", cache)
    assert len(folders(cache)) == 3
    (tmp_path / "texts" / "a.txt").write_text("def sub(a, b):")
    rows = tokenize([texts], tokenizer, "train", cache)
    assert tokenizer.decode(rows[0]["input_ids"], skip_special_tokens=True) == "def sub(a, b):"
    assert len(folders(cache)) == 4


def test_tokenizer_fingerprint_ignores_the_last_call_only(tokenizer):
    before = tokenizer_fingerprint(tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(3)
    assert tokenizer_fingerprint(tokenizer) == before == tokenizer_fingerprint(build_tokenizer())
    assert tokenizer_fingerprint(build_tokenizer(bos=False)) != before
    tokenizer.add_tokens(["<new>"])
    assert tokenizer_fingerprint(tokenizer) != before


def test_saved_truncation_does_not_cut_documents(texts, tokenizer, cache):
    tokenizer.backend_tokenizer.enable_truncation(3)
    assert len(tokenize([texts], tokenizer, "train", cache)[1]["input_ids"]) > 20


def test_empty_data_is_an_error(tmp_path, cache):
    (tmp_path / "e.txt").write_text("")
    with pytest.raises(UserError, match="no document has any token") as caught:
        tokenize([f"text:{tmp_path}/e.txt"], build_tokenizer(bos=False), "train", cache)
    assert caught.value.problems[0].value.endswith("e.txt") and folders(cache) == []


def test_arrow_rows_pass_through_checked(tmp_path, texts, tokenizer, cache):
    documents([5, 6, 7], [], [8, 299]).save_to_disk(str(tmp_path / "ids"))
    rows = tokenize([f"arrow:{tmp_path}/ids", texts], tokenizer, "train", cache)
    assert list(rows["input_ids"])[:2] == [[5, 6, 7], [8, 299]]
    assert rows["name"][:3] == ["ids:0", "ids:2", "a.txt"]
    assert CountingTokenizer.texts == 3, "only the texts were tokenised"
    for name, ids in {"high": [5, len(tokenizer)], "low": [-1, 5]}.items():
        documents([1], ids).save_to_disk(str(tmp_path / name))
        with pytest.raises(
            UserError, match=f"{name}:1 has token ids .* outside the tokenizer's vocabulary of"
        ):
            tokenize([f"arrow:{tmp_path}/{name}"], tokenizer, "train", cache)


def test_pack_respects_a_selection(cache):
    sequences = pack(documents([1, 2], [3, 4], [5, 6]).select([0, 2]), 2, cache)
    assert list(sequences["input_ids"]) == [[1, 2], [5, 6]]


def test_pack_reuses_its_cache(texts, tokenizer, cache, monkeypatch):
    sequences = pack(tokenize([texts], tokenizer, "train", cache), 8, cache)
    assert len(folders(cache)) == 2
    with monkeypatch.context() as patched:
        patched.setattr("tape_ds.data.pack.FILL", {})
        again = pack(tokenize([texts], tokenizer, "train", cache), 8, cache)
    assert again.to_dict() == sequences.to_dict()
    for length, packing, end in ((9, "cut", None), (8, "whole", None), (8, "cut", 0)):
        pack(tokenize([texts], tokenizer, "train", cache), length, cache, packing, end)
    assert len(folders(cache)) == 5, "every length, packing and end has its own"


def test_too_little_data_for_a_sequence(cache):
    with pytest.raises(UserError, match="not even all documents together fill a sequence"):
        pack(documents([1, 2, 3]), 4, cache)
    with pytest.raises(UserError, match="no document alone fills a sequence"):
        pack(documents([1, 2, 3], [4, 5]), 4, cache, "single")
