"""A result to compare with: only the same questions are compared, and all others are named."""

from argparse import Namespace
from types import SimpleNamespace

import pytest

from tape_ds import results
from tape_ds.errors import UserError
from tape_ds.scoring import ruler_base
from tape_ds.scoring.ruler_questions import RulerQuestion

OURS = SimpleNamespace(fingerprint=lambda: "ours")


def questions(task, length, answers=("7", "8"), tokens=1000):
    found = []
    for number, answer in enumerate(answers):
        found.append(
            RulerQuestion(task, length, number, (5,) * tokens, 30, {"outputs": [answer]}, number)
        )
    return found


def stored(asked, haystack="ours", **config):
    rows = []
    for each in asked:
        row = {
            "task": each.task,
            "length": each.length,
            "question": each.number,
            "tokens": len(each.ids),
        }
        rows.append(row | {"answers": each.document["outputs"], "reply": "", "score": 0.5})
    config = {"samples": 2, "chat": False, "sentences": "nltk"} | config
    result = results.collect(
        command=["ruler"], seed=0, config=config, data={"questions": "q", "text:a": haystack}
    )
    return result.finish({"replies": rows})


def compare(asked, base, sentences="nltk"):
    return ruler_base.common("folder", base, asked, OURS, sentences)


def test_the_same_questions_are_compared_and_others_named():
    """A task whose questions were others was dropped without a word, or compared if there were as many."""
    asked = (
        questions("vt", 4096)
        + questions("vt", 8192)
        + questions("cwe", 4096)
        + questions("fwe", 4096)
    )
    theirs = (
        questions("vt", 4096)
        + questions("cwe", 4096, answers=("7", "9"))
        + questions("fwe", 4096, tokens=999)
    )
    replies, left_out = compare(asked, stored(theirs))
    assert [(row["task"], row["length"], row["score"]) for row in replies] == [
        ("vt", 4096, 0.5)
    ] * 2
    assert left_out == [
        "vt at 8k (it was not asked there)",
        "cwe at 4k, fwe at 4k (its questions were others, as with another tokenizer or another lm-eval)",
    ]


@pytest.mark.parametrize(("haystack", "sentences"), [("theirs", "nltk"), ("ours", "points")])
def test_essays_of_another_haystack_are_left_out(haystack, sentences):
    """The answers are drawn alike, and prompts may have as many tokens."""
    asked = questions("niah_single_2", 4096) + questions("vt", 4096)
    replies, left_out = compare(asked, stored(asked, haystack), sentences)
    assert {row["task"] for row in replies} == {"vt"}
    assert left_out == ["niah_single_2 at 4k (its haystack was another one)"]
    assert compare(asked, stored(asked))[1] == []


def test_nothing_in_common_is_refused():
    asked = questions("vt", 4096) + questions("vt", 8192)
    with pytest.raises(
        UserError,
        match=r"--against = 'folder'.*none of these questions: vt at 4k and 8k \(it was not",
    ):
        compare(asked, stored(questions("cwe", 4096)))


def test_settings_that_make_all_questions_others_are_named_together():
    options = Namespace(against="folder", samples=3, seed=7, questions_per_text=5, chat=True)
    problems = ruler_base.check(options, stored(questions("vt", 4096)))
    assert [problem.wrong for problem in problems] == [
        "it has 2 questions of each task and length, this command asks 3",
        "its questions were drawn with --seed 0, these with 7",
        "its texts were asked 1 questions each, these 5",
        "its questions were texts to continue, these are chats",
    ]
    remedies = [problem.remedy.partition(",")[0] for problem in problems]
    assert remedies == [
        "give --samples 2",
        "give --seed 0",
        "give --questions_per_text 1",
        "leave --chat out",
    ]
    same = Namespace(against="folder", samples=2, seed=0, questions_per_text=1, chat=False)
    assert ruler_base.check(same, stored(questions("vt", 4096))) == []
