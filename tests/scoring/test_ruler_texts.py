"""Questions about one of RULER's texts: lm-eval's own, then the same about other keys, within the same length."""

import pytest

from tape_ds.scoring import ruler_generators, ruler_questions, ruler_texts
from tape_ds.scoring.questions import grouped
from tape_ds.scoring.ruler_texts import TooFewKeysError
from tests.scoring.ruler_tokenizers import tokenizer
from tests.scoring.test_ruler_generators import generators

SHARING = ("niah_multikey_1", "niah_multikey_2", "niah_multikey_3")
NEEDLE = "One of the special magic {type_needle_v} for {key} is: {value}."
DOCUMENT = {
    "input": "Learn by heart.\n"
    "One of the special magic numbers for red-dog is: 17.\n"
    "One of the special magic numbers for ad hoc-dump truck is: 25.\n"
    "One of the special magic numbers for old-cat is: 31.\n"
    "One of the special magic numbers for old-cat is: 32.\n"
    "What is the special magic number for red-dog mentioned in the provided text?",
    "gen_prefix": "The special magic number for red-dog mentioned in the provided text is",
    "outputs": ["17"],
    "index": 0,
}


def test_which_tasks_have_several_keys():
    several = [task for task in ruler_generators.tasks() if ruler_generators.keys_in_text(task) > 1]
    assert tuple(several) == SHARING
    assert ruler_generators.keys_in_text("niah_multikey_1") == 4


def test_a_question_about_another_key():
    first, second = ruler_texts.questions_about(DOCUMENT, NEEDLE, 2, "seed")
    assert first == DOCUMENT
    assert second["input"] == DOCUMENT["input"].replace(
        "for red-dog mentioned", "for ad hoc-dump truck mentioned"
    )
    assert (
        second["gen_prefix"]
        == "The special magic number for ad hoc-dump truck mentioned in the provided text is"
    )
    assert second["outputs"] == ["25"]


def test_a_key_with_two_values_is_not_asked():
    with pytest.raises(TooFewKeysError) as raised:
        ruler_texts.questions_about(DOCUMENT, NEEDLE, 3, "seed")
    assert raised.value.keys == 2


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("task", SHARING)
def test_questions_about_a_text(task, chat):
    options = {"chat": chat, "seed": None}
    drawn = ruler_questions.draw(
        generators(), task, tokenizer(begin=True), 2048, 7, per_text=4, **options
    )
    assert [question.text for question in drawn.questions] == [0, 0, 0, 0, 1, 1, 1]
    assert [question.number for question in drawn.questions] == list(range(7))
    own = generators().draw(task, tokenizer(begin=True), 2048, 2, room=drawn.room)
    texts = [question.document["input"].rpartition("\n")[0] for question in drawn.questions]
    for asked, document in zip(grouped(drawn.questions, lambda each: each.text), own, strict=True):
        assert asked[0].document == document, "the first question is lm-eval's own"
        assert len({question.document["gen_prefix"] for question in asked}) == len(asked)
        for question in asked:
            (answer,) = question.document["outputs"]
            prefix = question.document["gen_prefix"]
            key = prefix.removesuffix(" mentioned in the provided text is").partition(" for ")[2]
            kind = "uuids" if task == "niah_multikey_3" else "numbers"
            assert (
                NEEDLE.format(type_needle_v=kind, key=key, value=answer) in texts[question.number]
            )
            assert question.document["input"].endswith(
                f"\nWhat is the special magic {kind[:-1]} for {key} mentioned in the provided text?"
            )
            assert len(question.ids) + question.new_tokens <= 2048 and question.ids[0] == 1
            (prompt,) = ruler_questions.prompts(
                task, [question.document], tokenizer(begin=True), chat=chat
            )
            assert prompt.endswith(prefix) and prompt.count(answer) == 1
    assert len(set(texts)) == 2
    again = ruler_questions.draw(
        generators(), task, tokenizer(begin=True), 2048, 7, per_text=4, **options
    )
    assert again == drawn


def test_more_questions_than_keys():
    with pytest.raises(TooFewKeysError) as raised:
        ruler_questions.draw(generators(), "niah_multikey_1", tokenizer(), 2048, 5, per_text=5)
    assert raised.value.keys == 4
