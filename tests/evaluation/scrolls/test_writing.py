"""Batches follow from the data alone, and prompts keep what they must."""

from types import SimpleNamespace

import pytest

from evaluation.scrolls import writing
from evaluation.scrolls.writing import Asked, Limits
from tape_ds.data.scrolls.datasets import DATASETS
from tape_ds.data.scrolls.examples import Example
from tests.evaluation.scrolls.conftest import byte_tokenizer

LIMITS = Limits(
    max_tokens=64, answer_tokens=9, summary_tokens=12, reference_format=False, use_cache=True, top_k=None, seed=0
)


def asked(name, *lengths):
    rows = (Example(f"{name}-{number}", "x" * length, ("y",)) for number, length in enumerate(lengths))
    return Asked(DATASETS[name], tuple(rows))


def keys(found):
    return [[example.id for example in batch.examples] for batch in found]


def test_batches_hold_one_data_set_and_like_lengths_longest_first():
    found = writing.batches([asked("qasper", 3, 9, 5, 7), asked("gov_report", 8, 1)], size=2, alone=False)
    assert keys(found) == [["qasper-1", "qasper-3"], ["gov_report-0", "gov_report-1"], ["qasper-2", "qasper-0"]]
    assert [batch.key for batch in found] == ["qasper/qasper-1", "gov_report/gov_report-0", "qasper/qasper-2"]


def test_what_is_drawn_is_drawn_alone():
    found = writing.batches([asked("qasper", 3, 9), asked("gov_report", 8, 1)], size=2, alone=True)
    assert keys(found) == [["qasper-1", "qasper-0"], ["gov_report-0"], ["gov_report-1"]]


def test_an_answer_s_prompt_keeps_the_beginning():
    """64 less 9 tokens of an answer and its end: 54, of which one is <s>."""
    tokenizer = byte_tokenizer()
    prompt = LIMITS.prompt(DATASETS["qasper"], "question? " + "d" * 60, tokenizer)
    assert tokenizer.decode(prompt.ids, skip_special_tokens=True) == "question? " + "d" * 43
    assert (len(prompt.ids), prompt.cut_tokens) == (54, 17)


def test_a_summary_s_prompt_keeps_the_request():
    tokenizer = byte_tokenizer()
    prompt = LIMITS.prompt(DATASETS["gov_report"], "d" * 60, tokenizer)
    text = tokenizer.decode(prompt.ids, skip_special_tokens=True)
    assert len(prompt.ids) == 64 - 13
    assert text.startswith("Context:\nddd") and text.endswith("d\n Please summarize this report:")


def test_limits_without_room_and_a_begin_that_ends():
    tokenizer = byte_tokenizer()
    kinds = [DATASETS["qasper"], DATASETS["gov_report"], DATASETS["qmsum"]]
    assert writing.check(kinds, tokenizer, LIMITS) == []
    small = Limits(**{**vars(LIMITS), "max_tokens": 20})
    (problem,) = writing.check(kinds, tokenizer, small)  # both summaries say the same
    assert (problem.field, problem.value) == ("--max_tokens", 20)
    tokenizer.eos_token = "<s>"
    reference = Limits(**{**vars(LIMITS), "reference_format": True})
    assert [each.field for each in writing.check(kinds, tokenizer, reference)] == ["--reference_format"]
    assert writing.check(kinds, tokenizer, LIMITS) == []


@pytest.mark.parametrize(("words", "kept"), [(14_999, 14_999), (15_001, 15_000)])
def test_the_published_generation_reads_15000_words(words, kept):
    limits = Limits(**{**vars(LIMITS), "reference_format": True, "max_tokens": 100_000})
    tokenizer = byte_tokenizer()
    prompt = limits.prompt(DATASETS["qasper"], " ".join("w" * words), tokenizer)
    assert tokenizer.decode(prompt.ids, skip_special_tokens=True) == " ".join("w" * kept)
    assert prompt.cut_tokens == words - kept


def test_a_text_is_what_stands_before_the_end(monkeypatch):
    tokenizer = byte_tokenizer()
    given = tokenizer("yes", add_special_tokens=False)["input_ids"]
    seen = SimpleNamespace()

    def continue_prompts(model, prompts, **settings):
        seen.settings = settings
        return [given, given * 3]

    monkeypatch.setattr(writing, "continue_prompts", continue_prompts)
    (batch,) = writing.batches([asked("qasper", 70, 5)], size=2, alone=False)
    written = writing.write(None, tokenizer, [1], LIMITS, batch)
    assert written["qasper-0"] == {
        "text": "yes",
        "prompt_tokens": 54,
        "cut_tokens": 17,
        "new_tokens": 3,
        "ended": True,
    }
    assert (written["qasper-1"]["text"], written["qasper-1"]["ended"]) == (
        "yesyesyes",
        False,
    )  # 9 tokens: all it may have
    assert seen.settings == {"new_tokens": 9, "ends": [1], "use_cache": True, "draw": None}
    assert writing.tokens({"qasper": written}) == {"prompt_tokens": 60, "new_tokens": 12}
