"""Texts with several keys: every key asked for is there, once, at every length."""

import re

import pytest

from tape_ds.data.multikey import draw
from tape_ds.errors import UserError
from tests.data.letters import Letters


def texts(seed=3, lengths=(3000, 4000), trials=20):
    return draw(Letters(), lengths, trials, seed=seed, reply=10)


def test_every_question_has_its_answer_before_it():
    found = texts()
    assert len(found) == 2 and found[0].ids != found[1].ids
    assert [each.trial for text in found for each in text.questions[4000]] == list(range(20))
    for text in found:
        assert list(text.questions) == [3000, 4000] and len(text.ids) == text.questions[4000][0].start
        for length, questions in text.questions.items():
            for each in questions:
                before = Letters().decode(text.ids[: each.start])
                name = re.search("The pass key of the ([a-z ]+) is$", Letters().decode(each.ids))[1]
                assert re.findall(f"The pass key of the {name} is ([0-9]+)\\. Remember", before) == [str(each.key)]
                assert length - 20 < each.start + len(each.ids) + 10 <= length
        assert [each.key for each in text.questions[3000]] == [each.key for each in text.questions[4000]]


def test_they_follow_from_the_seed():
    assert texts() == texts() != texts(seed=4)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(UserError, match="give a multiple of 10"):
        texts(trials=12)
    with pytest.raises(UserError, match="no room for the keys"):
        texts(lengths=[600])
