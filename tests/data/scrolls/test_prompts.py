"""What is kept of a long text, what is cut, and where an answer begins and ends."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from tape_ds.data.scrolls.examples import DATASETS
from tape_ds.data.scrolls.prompts import answer_ids, prompt_ids, reserved
from tape_ds.errors import UserError
from tests.data.conftest import build_tokenizer

QUESTION, SUMMARY = DATASETS["qasper"], DATASETS["gov_report"]
BOS, EOS = 0, 1


def prompt(tokenizer, dataset, text, max_tokens=60, answer=10, reference_format=False, **options):
    """With room for an answer of ``answer`` tokens."""
    return prompt_ids(
        dataset,
        text,
        tokenizer,
        max_tokens,
        reserve=reserved(answer),
        reference_format=reference_format,
        **options,
    )


@pytest.mark.parametrize("reference_format", [False, True])
def test_a_short_question_is_the_input_as_it_is(tokenizer, reference_format):
    found = prompt(tokenizer, QUESTION, "a + b?", reference_format=reference_format)
    assert (
        found.ids == tokenizer("a + b?").input_ids and found.ids[0] == BOS and found.cut_tokens == 0
    )


def test_a_long_question_keeps_its_beginning(tokenizer):
    whole = tokenizer(text := "xyz " * 100).input_ids
    found = prompt(tokenizer, QUESTION, text, 60)
    assert found.ids == whole[:49] and found.cut_tokens == len(whole) - 49 > 0


def test_a_long_summary_keeps_its_beginning_and_the_request(tokenizer):
    text = "position " * 50
    whole = tokenizer(f"Context:\n{text}\n Please summarize this report:").input_ids
    found = prompt(tokenizer, SUMMARY, text, max_tokens=80)
    assert len(found.ids) == 80 - 11 and found.cut_tokens == len(whole) - len(found.ids)
    printed = tokenizer.decode(found.ids, skip_special_tokens=True)
    assert printed.startswith("Context:\nposition position") and printed.endswith(
        "\n Please summarize this report:"
    )


def test_published_limits():
    """7,991 ids of a question; 7,184 and 7 of a summary: what the published code keeps, with its tokenizer's request of
    seven ids."""
    tokenizer = build_tokenizer()
    text = "xyz " * 30_000
    whole = tokenizer(" ".join(text.split(" ")[:20_000])).input_ids
    found = prompt(tokenizer, QUESTION, text, 8192, QUESTION.answer_tokens, reference_format=True)
    assert found.ids == whole[:7991]
    whole = tokenizer(f"Context:\n{text}\n Please summarize this report:").input_ids
    found = prompt(tokenizer, SUMMARY, text, 8192, SUMMARY.answer_tokens, reference_format=True)
    assert found.ids == whole[:7184] + whole[-7:] and found.cut_tokens == len(whole) - 7191


def test_the_published_code_repeats_the_end_of_a_short_summary_s_prompt(tokenizer):
    """Its last seven ids are put behind the first 7,184 whether or not anything lies between."""
    whole = tokenizer("Context:\na b c\n Please summarize this report:").input_ids
    own, published = (
        prompt(tokenizer, SUMMARY, "a b c", 200, reference_format=each) for each in (False, True)
    )
    assert own.ids == whole and published.ids == whole + whole[-7:]
    assert own.cut_tokens == published.cut_tokens == 0
    # three ids to spare
    close = prompt(tokenizer, SUMMARY, "a b c", len(whole) + 3 + 11, reference_format=True)
    assert close.ids == whole[:-4] + whole[-7:] and close.cut_tokens == 0


def test_the_request_keeps_its_line_break_where_a_token_joins_it_to_a_full_stop(tokenizer):
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["pre_tokenizer"]["use_regex"] = False
    content["model"]["vocab"] |= {".\u010a": 300}
    content["model"]["merges"].append([".", "\u010a"])
    joining = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), bos_token="<s>", eos_token="</s>"
    )
    assert joining.tokenize(".\n") == [".\u010a"]
    for end in ("a", "."):
        text = joining.decode(prompt(joining, SUMMARY, "b" * 80 + end, 80).ids)
        assert text.endswith("\n Please summarize this report:"), end


def test_words_are_cut_in_the_published_format_alone(tokenizer):
    """Runs of spaces are words for the published code, and one token for some tokenizers: the cut is seen."""
    text = "a b  c d"
    assert prompt(tokenizer, QUESTION, text, words=3).ids == tokenizer(text).input_ids
    found = prompt(tokenizer, QUESTION, text, words=3, reference_format=True)
    assert found.ids == tokenizer("a b ").input_ids
    assert found.cut_tokens == len(tokenizer("c d", add_special_tokens=False).input_ids)
    summary = prompt(tokenizer, SUMMARY, text, words=3, reference_format=True)
    assert "c d" in tokenizer.decode(summary.ids)


@pytest.mark.parametrize("reference_format, beginning", [(False, []), (True, [BOS])])
def test_a_long_answer_is_cut_and_still_ends(tokenizer, reference_format, beginning):
    """In the published format the BOS counts among the answer's tokens."""
    own = tokenizer("xyz" * 9, add_special_tokens=False).input_ids
    ids, cut_tokens = answer_ids(
        "xyz" * 9, tokenizer, max_tokens=5, reference_format=reference_format
    )
    assert ids == [*(beginning + own)[:5], EOS] and len(ids) == 6
    assert cut_tokens == len(beginning + own) - 5


@pytest.mark.parametrize("dataset, max_tokens", [(QUESTION, 11), (SUMMARY, 20)])
def test_no_room_is_said(tokenizer, dataset, max_tokens):
    with pytest.raises(UserError, match="no room for a text"):
        prompt(tokenizer, dataset, "text", max_tokens=max_tokens)
