"""Data with tokens that stand for pictures in the model around a decoder are refused, wherever ids come from."""

import json
from datetime import date

import datasets
import numpy as np
import pytest

from tape_ds.data import placeholders, prepared
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.chat import sequences as chat
from tape_ds.data.scrolls import sequences as scrolls
from tape_ds.data.scrolls.sequences import SequenceForm
from tape_ds.data.selection import select
from tape_ds.errors import UserError
from tape_ds.models.loading.wrapper import PLACEHOLDERS
from tests.data.chat.chatml import MARKED, conversation, write
from tests.data.conftest import build_tokenizer

PROSE = [
    "def add(a, b): pass",
    "in HTML <image> is no element",
    "class Tape: pass",
    "<video> neither",
]


class OfWrapper:
    """A configuration as far as it is read."""


@pytest.fixture
def tokenizer():
    """One whose special tokens are found in ordinary text, as transformers does by default."""
    made = build_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<image>", "<video>"]})
    config = OfWrapper()
    image, video = made.convert_tokens_to_ids(["<image>", "<video>"])
    setattr(config, PLACEHOLDERS, {"image_token_id": [image], "video_token_ids": [video]})
    placeholders.mark(made, config)
    return made


@pytest.fixture
def rows(tmp_path):
    lines = [json.dumps({"text": text}) for text in PROSE]
    (tmp_path / "prose.jsonl").write_text("\n".join(lines))
    return f"jsonl:{tmp_path}/prose.jsonl#text"


def refused(call, *arguments, **named):
    with pytest.raises(UserError) as caught:
        call(*arguments, **named)
    (problem,) = caught.value.problems
    return problem


def check_names(problem, place, field="train_data"):
    assert problem.field == field
    assert f"{place} has the token '<image>' (300), which stands for pictures" in problem.wrong
    assert (
        "(image_token_id)" in problem.wrong and "take '<image>' out of that text" in problem.remedy
    )


@pytest.mark.parametrize("most", [None, 3])
def test_a_placeholder_in_ordinary_text(rows, tokenizer, tmp_path, most):
    """``most``: by the reader that stops at a number of documents."""
    problem = refused(select, [rows], tokenizer, "train", tmp_path / "cache", max_documents=most)
    check_names(problem, "prose.jsonl:2")
    assert problem.value == rows
    bad_rows = BadRows(2)
    found = select(
        [rows], tokenizer, "train", tmp_path / "cache", max_documents=most, bad_rows=bad_rows
    )
    assert found.documents["name"] == ["prose.jsonl:1", "prose.jsonl:3"]
    assert len(bad_rows.problems) == 2 and "video_token_ids" in bad_rows.problems[1].wrong


def test_they_are_words_to_a_model_without_pictures(rows, tokenizer, tmp_path):
    """Also where the cache has what a model with pictures reads of the same data, and the other way round."""
    delattr(tokenizer, PLACEHOLDERS)
    assert len(select([rows], tokenizer, "train", tmp_path / "cache").documents) == 4
    setattr(tokenizer, PLACEHOLDERS, {"image_token_id": [300]})
    check_names(refused(select, [rows], tokenizer, "train", tmp_path / "cache"), "prose.jsonl:2")


def test_stored_ids(tokenizer, tmp_path):
    ids = [[5, 6, 7], [8, 300, 9]]
    datasets.Dataset.from_dict({"input_ids": ids}).save_to_disk(tmp_path / "ids")
    spec = f"arrow:{tmp_path}/ids"
    problem = refused(select, [spec], tokenizer, "train", tmp_path / "cache")
    check_names(problem, "ids:1")


def test_a_prepared_folder_is_read_once(rows, tokenizer, tmp_path, monkeypatch):
    mixed = tmp_path / "mixed"
    prepared.prepare([rows], tokenizer, mixed, shard_tokens=8)
    problem = refused(select, [f"arrow:{mixed}"], tokenizer, "train", tmp_path / "cache")
    check_names(problem, "prose.jsonl:2")

    # in a later shard, of 16-bit ids, and twice
    first = [text for text in PROSE if "<" not in text]
    (tmp_path / "prose.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in first))
    clean = tmp_path / "clean"
    prepared.prepare([rows], tokenizer, clean, shard_tokens=8)
    for _ in range(2):
        found = select([f"arrow:{clean}"], tokenizer, "train", tmp_path / "cache")
        assert len(found.documents) == 2
        monkeypatch.setattr(placeholders, "_first_with", None)


def test_conversations(tokenizer, tmp_path):
    tokenizer.chat_template = MARKED
    talks = [conversation("a?", "b"), conversation("what is in <image>?", "a cat")]
    spec = write(tmp_path / "x.jsonl", talks)
    today = date(2026, 1, 1)
    problem = refused(chat.rendered, [spec], tokenizer, "train", tmp_path / "cache", today)
    check_names(problem, "x.jsonl:2")


def test_questions(tokenizer, tmp_path):
    (tmp_path / "qasper").mkdir()
    row = {"id": "q1", "input": "what?\n\nthe <image> shows", "output": "nothing"}
    (tmp_path / "qasper" / "train.jsonl").write_text(json.dumps(row) + "\n")
    form = SequenceForm(60, 10)
    given = ("qasper", "train", tmp_path, tokenizer, form, tmp_path / "cache")
    check_names(refused(scrolls.tokenize, *given), "q1", "dataset")


def test_the_first_of_many_documents():
    """Also where a selection begins within a chunk."""
    ids = [[1, 2], [], [3, 9], [4], [9, 9]]
    whole = datasets.Dataset.from_dict({"input_ids": ids})
    tokens = np.array([9, 300])
    assert placeholders._first_with(whole, tokens) == 2
    assert placeholders._first_with(datasets.concatenate_datasets([whole, whole]), tokens) == 2
    later = datasets.Dataset(whole.data.slice(3))
    assert placeholders._first_with(later, tokens) == 1
    assert placeholders._first_with(datasets.Dataset(whole.data.slice(3, 1)), tokens) is None
