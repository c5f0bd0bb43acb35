"""Conversations of ``generated:retrieval``: of the length that is asked for, a turn a question, others by split."""

from datetime import date

import numpy as np
import pytest

from tape_ds.data.chat import generated, sequences, template
from tape_ds.data.chat.conversations import check, fingerprint
from tape_ds.data.sources import parse_all
from tape_ds.errors import UserError
from tests.data.chat.chatml import FORGETFUL, tokenizer
from tests.data.retrieval.conftest import TEXT

DAY = date(2026, 11, 26)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def spec(folder):
    return f"generated:retrieval#documents=5&tokens=1200-1600&rivals=4&questions=1-3&text=text:{folder}/text.txt"


def rows(spec, folder, split="train", template_of=None):
    (source,) = parse_all([spec], "train_data")
    model = tokenizer(template_of) if template_of else tokenizer()
    return list(generated.read(source, split, tokenizer=model, day=DAY, cache_dir=folder / "cache"))


def test_a_conversation_has_the_text_once_and_a_turn_for_each_question(spec, folder):
    found = rows(spec, folder)
    assert len(found) == 5 and len({row.name for row in found}) == 5
    for row in found:
        roles = [turn["role"] for turn in row.turns]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and 1 <= len(roles) // 2 <= 3
        assert row.tools is None and row.others == {}
        text = row.turns[0]["content"]
        assert text.count("wanders") > 3 and all(
            "wanders" not in turn["content"] for turn in row.turns[1:]
        )
        ids, targets = template.encoded(row.turns, tokenizer(), day=DAY)
        assert 1100 < len(ids) <= 1600 and 0 < targets.sum() < 200


def test_the_same_again_and_others_for_the_other_split(spec, folder):
    found = [row.turns for row in rows(spec, folder)]
    assert found == [row.turns for row in rows(spec, folder)]
    longer = [row.turns for row in rows(spec.replace("documents=5", "documents=7"), folder)]
    assert longer[:5] == found
    assert all(turns not in found for turns in (row.turns for row in rows(spec, folder, "heldout")))


def test_records_alone(folder):
    for row in rows("generated:retrieval#documents=4&tokens=1200", folder):
        ids, _ = template.encoded(row.turns, tokenizer(), day=DAY)
        assert 900 < len(ids) <= 1200


def test_chat_tuning_reads_them_like_others(spec, folder):
    assert check([spec], []) == []
    stored = sequences.rendered([spec], tokenizer(), "train", folder / "cache", DAY)
    chosen = sequences.choose(stored, np.arange(5), 1600, "cut")
    assert (
        str(chosen.cut)
        == "0 of 5 conversations cut by 0 tokens; left out: 0 too long, 0 without an answer in what is kept"
    )
    for row, found in zip(rows(spec, folder), stored, strict=True):
        ids, targets = template.encoded(row.turns, tokenizer(), day=DAY)
        assert (
            found["input_ids"] == ids.tolist() and found["targets"] == targets.astype(int).tolist()
        )
    (source,) = parse_all([spec], "train_data")
    assert fingerprint(source, "train") == source.fingerprint()


def test_what_the_template_does_not_render_is_reported_as_of_any_conversation(folder):
    spec = "generated:retrieval#documents=2&tokens=900&questions=2&families=lookup"
    text = FORGETFUL.replace("m.content.split('THOUGHT')[-1]", "m.content[:3]")
    with pytest.raises(UserError, match="renders it otherwise once more turns follow"):
        sequences.rendered([spec], tokenizer(text), "train", folder / "cache", DAY)


def test_no_room_is_refused(folder):
    with pytest.raises(UserError, match="a document may have 300"):
        rows("generated:retrieval#documents=2&tokens=300-900", folder)
    least = 380
    spec = f"generated:retrieval#documents=200&tokens={least}&questions=4&families=lookup"
    with pytest.raises(
        UserError, match=r"than a sequence of 380|as the chat template renders them"
    ):
        rows(spec, folder)
