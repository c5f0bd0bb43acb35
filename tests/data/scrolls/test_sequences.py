"""Sequences of fine-tuning: which tokens are targets, which sequence comes when, and what padding costs."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tape_ds.data.order import AnswerSequences
from tape_ds.data.scrolls import sequences
from tape_ds.data.scrolls.sequences import SequenceForm
from tape_ds.data.selection import token_counts
from tests.data.conftest import CountingTokenizer, build_tokenizer

BOS, EOS = 0, 1
FORM = SequenceForm(max_tokens=64, answer_tokens=8)


def write(folder, count=11):
    """A data set in which question i is longer than those before, every third with two answers."""
    (folder / "qasper").mkdir()
    lines = []
    for number in range(count):
        for answer in ["ok", "yes"][: 1 + (number % 3 == 0)]:
            text = f"Q{number}?\n\n" + "x y " * (2 * number)
            lines.append(
                json.dumps({"id": f"q{number}", "input": text, "output": f"{answer} {number}"})
            )
    for split in ("train", "validation"):
        (folder / "qasper" / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def made(data):
    return sequences.tokenize("qasper", "train", data, build_tokenizer(), FORM, data / "cache")


def served(made, samples=40, step_sequences=4, seed=3):
    return AnswerSequences(made, samples=samples, seed=seed, step_sequences=step_sequences)


def test_every_reference_answer_has_a_sequence(made):
    assert len(made) == 15 and made["id"].count("q3") == 2 and made["id"].count("q4") == 1


@pytest.mark.parametrize("reference_format", [False, True])
def test_exactly_the_answer_and_its_end_are_targets(data, tmp_path, reference_format):
    tokenizer = build_tokenizer()
    form = SequenceForm(64, 8, reference_format)
    found = sequences.tokenize("qasper", "train", data, tokenizer, form, tmp_path)
    samples = served(found, samples=len(found), step_sequences=1)
    for index in range(len(found)):
        item, row = samples[index], found[samples.row_of(index)]
        targets = item["labels"][item["labels"] != -100].tolist()
        assert targets[-1] == EOS and (targets[0] == BOS) == reference_format
        answer = tokenizer.decode(targets, skip_special_tokens=True)
        assert answer in {f"ok {row['id'][1:]}", f"yes {row['id'][1:]}"}
        assert (item["labels"] == -100).sum() + len(targets) == len(item["input_ids"])
        assert torch.equal(item["labels"][-len(targets) :], item["input_ids"][-len(targets) :])
        assert item["input_ids"][: -len(targets)].tolist().count(BOS) == 1, (
            "one BOS, at the beginning"
        )
        assert item["position_ids"].tolist() == list(range(len(item["input_ids"])))
        assert item["document_ids"].dtype == torch.int32 and not item["document_ids"].any()


def test_what_was_cut_is_counted(made):
    """A text that is cut fills the 64 - 9 tokens that an answer of 8 and EOS leave."""
    found = sequences.cut(made)
    lost = np.array(made["cut_prompt"])
    assert (
        found.rows == 15
        and found.prompts == (lost > 0).sum() > 0
        and found.prompt_tokens == lost.sum()
    )
    assert found.answers == found.answer_tokens == 0
    assert max(token_counts(made)) <= 64 and all(
        len(row["input_ids"]) == 55 + row["targets"] for row in made if row["cut_prompt"]
    )


def test_sequences_are_made_once(data, tmp_path):
    CountingTokenizer.texts = 0
    for _ in range(2):
        sequences.tokenize("qasper", "train", data, build_tokenizer(), FORM, tmp_path)
    first = CountingTokenizer.texts
    sequences.tokenize("qasper", "train", data, build_tokenizer(), SequenceForm(64, 7), tmp_path)
    assert CountingTokenizer.texts == 2 * first > 0


def test_held_out_questions_are_spread_and_asked_once(data, tmp_path):
    few = sequences.tokenize(
        "qasper", "validation", data, build_tokenizer(), FORM, tmp_path, questions=3
    )
    assert few["id"] == ["q0", "q3", "q7"]
    every = sequences.tokenize(
        "qasper", "validation", data, build_tokenizer(), FORM, tmp_path, questions=500
    )
    assert every["id"] == [f"q{number}" for number in range(11)]


def test_an_epoch_serves_every_sequence_once_whatever_the_steps(made):
    """Fifteen sequences in steps of four: a step reaches over the border of two epochs."""
    samples = served(made, samples=120)
    drawn = [samples.row_of(index) for index in range(120)]
    assert sorted(drawn) == sorted([*range(15)] * 8)
    steps = [sorted(drawn[at : at + 4]) for at in range(0, 120, 4)]
    assert steps[0] != sorted(drawn[60:64]), "each epoch has its own order"


def test_the_order_of_a_step_is_by_length_and_changes_nothing_else(made):
    """The sequences of a step are those of a random order; within it the longest come first."""
    by_four, one_by_one = served(made), served(made, step_sequences=1)
    for at in range(0, 40, 4):
        drawn = [by_four.row_of(index) for index in range(at, at + 4)]
        assert sorted(drawn) == sorted(one_by_one.row_of(index) for index in range(at, at + 4))
        assert [by_four.lengths[row] for row in drawn] == sorted(
            by_four.lengths[drawn], reverse=True
        )


def test_tokens_are_those_of_all_samples(made):
    samples = served(made, samples=40)
    assert samples.tokens == sum(len(samples[index]["input_ids"]) for index in range(40))


@pytest.mark.parametrize(
    ("name", "reference_format", "expected"),
    [
        ("qasper", False, "6fd7a2f1d17a4eb7"),
        ("contract_nli", True, "9d05b34d2225c2da"),
    ],
)
def test_frozen_sequences(name, reference_format, expected, tmp_path):
    assets = Path(__file__).parents[2] / "assets" / "scrolls"
    found = sequences.tokenize(
        name, "train", assets, build_tokenizer(), SequenceForm(96, 8, reference_format), tmp_path
    )
    samples, digest = AnswerSequences(found, samples=16, seed=3, step_sequences=4), hashlib.sha256()
    for index in range(16):
        for field, values in sorted(samples[index].items()):
            digest.update(f"{field}{values.dtype}".encode())
            digest.update(values.numpy().tobytes())
    assert digest.hexdigest()[:16] == expected
