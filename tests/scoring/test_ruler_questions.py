"""RULER's questions: they fit their length with any tokenizer, in lm-eval's words, and are scored as lm-eval does."""

import random

import pytest

from tape_ds.scoring import ruler_questions
from tape_ds.scoring.ruler_generators import NoQuestionError
from tests.scoring.ruler_tokenizers import tokenizer
from tests.scoring.test_ruler_generators import GENERATED, generators


def fits(task, length, split, chat, begin=True):
    drawn = ruler_questions.draw(
        generators(), task, tokenizer(split, begin=begin), length, 4, chat=chat
    )
    assert len(drawn.questions) == 4
    for question in drawn.questions:
        assert len(question.ids) + question.new_tokens <= length
        assert question.ids.count(1) >= 1
    return drawn


@pytest.mark.parametrize("task", ["fwe", "niah_multiquery", "vt"])
@pytest.mark.parametrize("chat", [False, True])
def test_prompt_prefix_and_reply_fit_the_length(task, chat):
    """lm-eval adds the prefix after it has measured, and leaves no room for the reply to frequent words."""
    drawn = fits(task, 1024, "words", chat)
    longest = max(len(question.ids) for question in drawn.questions) + drawn.questions[0].new_tokens
    assert task != "fwe" or (drawn.room > 0 and longest > 950)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1024, 4096, 6000])
@pytest.mark.parametrize("task", GENERATED)
def test_every_task_fits(task, length):
    for chat in (False, True):
        fits(task, length, "words", chat)
    if task != "vt":  # its example has 500 tokens
        try:
            fits(task, length, "letters", False)
        except NoQuestionError:
            # 10 frequent words 30 times each, with an example, have more letters than that
            assert length == 1024 or task == "cwe"


def test_a_base_prompt_ends_with_the_answers_prefix_and_a_chat_continues_it():
    text = {}
    for chat in (False, True):
        documents = generators().draw("cwe", tokenizer(), 1024, 2, room=0)
        text[chat] = ruler_questions.prompts("cwe", documents, tokenizer(), chat=chat)[0]
    prefix = "Answer: The top 10 words that appear most often in the list are:"
    assert text[False].endswith(f"in the above list?\n\n{prefix}"), (
        "lm-eval's delimiter of this task"
    )
    assert text[True].startswith("<s>user: Below is a numbered list")
    assert text[True].endswith(f"in the above list?</s><s>assistant: {prefix}")


def test_scores_are_lm_evals():
    """A thousand replies against the rule written out: the share of the answers in the reply; about documents, any."""
    drawing = random.Random(3)
    for number in range(1000):
        answers = [f"{drawing.randrange(10**6)}X" for _ in range(drawing.randint(1, 5))]
        kept = [answer for answer in answers if drawing.random() < 0.5]
        reply = "\x01 and ".join(
            answer.lower() if drawing.random() < 0.5 else answer for answer in kept
        )
        document = {"outputs": answers, "max_length": drawing.choice([1024, 4096, 5000])}
        task = ("niah_multivalue", "qa_squad")[number % 2]
        shares = [float(answer.lower() in reply.lower()) for answer in answers]
        expected = max(shares) if task == "qa_squad" else sum(shares) / len(answers)
        scored = ruler_questions.score(task, document, reply)
        assert scored == expected if task != "qa_squad" else (scored > 0) == (expected > 0)


def test_a_haystack_has_as_many_tokens_as_the_longest_length():
    tasks, words = {"niah_single_2": 1, "vt": 1}, ["word " * 1500]
    assert ruler_questions.check(tasks, [1024], 5, tokenizer(), words, "text:a") == []
    (problem,) = ruler_questions.check(tasks, [1024, 2048], 5, tokenizer(), words, "text:a")
    assert (problem.field, problem.value) == (
        "haystack",
        "text:a",
    ) and "1,500 tokens" in problem.wrong
    assert ruler_questions.check({"vt": 1}, [2048], 5, tokenizer(), words, "text:a") == []


def test_a_fingerprint_names_the_questions():
    prints = {
        ruler_questions.fingerprint(
            ruler_questions.draw(generators(), "vt", tokenizer(), 1024, 2, seed=seed).questions
        )
        for seed in (None, 5, 5)
    }
    assert len(prints) == 2
