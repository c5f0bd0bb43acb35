"""Packed sequences of conversations: what is cut, left out and counted, and which tokens are targets."""

from datetime import date

import numpy as np
import pytest
import torch

from tape_ds.data.chat import sequences
from tape_ds.data.chat.sequences import ChatSequences, CutConversations
from tests.data.chat.chatml import DATED, TOOLED, WEATHER, by_hand, conversation, tokenizer, write
from tests.data.conftest import CountingTokenizer

DAY = date(2026, 11, 26)
# about 40, 50, ... tokens; the last has its one answer behind a long question
TALKS = [conversation("x?", "y " * (5 * number), "and?", "z") for number in range(1, 9)]
TALKS += [conversation("question " * 30, "late"), conversation("nobody answers")]


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "chat.jsonl", TALKS)


@pytest.fixture(scope="module")
def stored(spec, tmp_path_factory):
    return sequences.rendered([spec], tokenizer(), "train", tmp_path_factory.mktemp("cache"), DAY)


def chosen(stored, max_tokens=100, too_long="cut"):
    return sequences.choose(stored, np.arange(len(stored)), max_tokens, too_long)


def test_every_conversation_is_stored_whole_with_its_mask(stored):
    for turns, row in zip(TALKS, stored, strict=True):
        ids, mask = by_hand(turns, tokenizer())
        assert row["input_ids"] == ids.tolist() and row["targets"] == mask.astype(int).tolist()
        assert row["first"] == (mask.argmax() if mask.any() else -1)


@pytest.mark.parametrize("too_long", ["cut", "leave_out"])
def test_what_is_too_long_is_counted(stored, too_long):
    sizes = [len(by_hand(turns, tokenizer())[0]) for turns in TALKS]
    long = [size for size in sizes[:8] if size > 100]
    assert 0 < len(long) < 8 and sizes[8] > 100 > sizes[9]
    found = chosen(stored, too_long=too_long)
    if too_long == "cut":
        expected = CutConversations(10, len(long), sum(long) - 100 * len(long), 0, 2)
    else:
        expected = CutConversations(10, 0, 0, len(long) + 1, 1)
    assert (
        found.cut == expected and len(found.numbers) == 10 - expected.left_out - expected.unanswered
    )
    for number, kept in zip(found.numbers, found.spread(), strict=True):
        ids, mask = by_hand(TALKS[number], tokenizer())
        assert (
            kept[:, 0].tolist() == ids[:100].tolist() and kept[:, 1].tolist() == mask[:100].tolist()
        )


@pytest.fixture
def served(stored, tmp_path):
    made = sequences.packed(chosen(stored, 200), tmp_path)
    return ChatSequences(made, samples=2 * len(made), seed=3, step_sequences=2)


def test_sequences_hold_whole_conversations_apart(stored, served):
    expected = sorted(tuple(each[:, 0].tolist()) for each in chosen(stored, 200).spread())
    found, shared = [], 0
    for index in range(len(served) // 2):
        item = served[index]
        assert len(item["input_ids"]) <= 200
        owners = item["document_ids"]
        shared += int(owners.max()) > 0
        for owner in owners.unique():
            mine = owners == owner
            found.append(tuple(item["input_ids"][mine].tolist()))
            assert item["position_ids"][mine].tolist() == list(range(int(mine.sum())))
    assert sorted(found) == expected and shared > 0


def test_labels_are_the_assistants_tokens(stored, served):
    items = [served[index] for index in range(len(served) // 2)]
    learnt = sum(int((item["labels"] != -100).sum()) for item in items)
    assert learnt == sum(int(each[:, 1].sum()) for each in chosen(stored, 200).spread())
    for item in items:
        at = item["labels"] != -100
        assert torch.equal(item["labels"][at], item["input_ids"][at])
        begins = item["position_ids"] == 0
        assert not (at & begins).any(), "what begins a conversation is foreseen by nothing"


def test_every_answer_is_asked_behind_what_stands_before_it():
    ids, mask = by_hand(TALKS[0], tokenizer())
    found = list(sequences.answers(np.stack([ids, mask], axis=1).astype(np.int64)))
    assert len(found) == 2 and found[1][0].tolist() == ids.tolist()
    assert sum(targets for _, targets in found) == mask.sum()
    for each, targets in found:
        assert mask[len(each) - targets : len(each)].all() and not mask[len(each) - targets - 1]


def test_a_dated_template_is_rendered_anew_for_another_day_alone(spec, tmp_path):

    def begun(day, template=DATED):
        row = sequences.rendered([spec], tokenizer(template), "train", tmp_path, day)[0]
        return tokenizer().decode(row["input_ids"])

    assert "26 Nov 2026" in begun(DAY) and "27 Nov 2026" in begun(date(2026, 11, 27))
    for _ in range(2):
        CountingTokenizer.texts = 0
        begun(DAY)
        assert CountingTokenizer.texts == 0
    before = begun(DAY, tokenizer().chat_template)
    CountingTokenizer.texts = 0
    assert (
        begun(date(2026, 11, 27), tokenizer().chat_template) == before
        and CountingTokenizer.texts == 0
    )


def test_tools_ends_and_other_columns_are_kept_with_the_conversations(tmp_path):
    of, talk = tokenizer(TOOLED), conversation("x?", "y", "and?", "z")
    spec = write(tmp_path / "x.jsonl", [talk, talk[:2]], tools=[WEATHER], id=3, source="web")
    found = sequences.rendered([spec], of, "train", tmp_path, DAY)
    assert all("weather" in of.decode(row["input_ids"]) for row in found)
    assert sequences.counted(found, "ends") == {of.convert_tokens_to_ids("<|im_end|>"): 3}
    assert sequences.counted(found, "unread") == {"id": 2, "source": 2}
