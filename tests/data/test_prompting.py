"""No prompt ends with what its tokenizer appends to every text."""

import pytest
from tokenizers.processors import BertProcessing, ByteLevel, Sequence, TemplateProcessing

from tape_ds.data.prompting import around, prompt_ids
from tape_ds.data.tokenized import scored_rows
from tests.data.conftest import build_tokenizer

BOS, EOS = ("<s>", 0), ("</s>", 1)
ENDS = {
    "eos": (TemplateProcessing(single="<s> $A </s>", special_tokens=[BOS, EOS]), 1),
    "two": (TemplateProcessing(single="<s> $A <s> </s>", special_tokens=[BOS, EOS]), 2),
    "no eos": (TemplateProcessing(single="<s> $A <s>", special_tokens=[BOS]), 1),
    "sequence": (
        Sequence(
            [ByteLevel(), TemplateProcessing(single="<s> $A </s>", special_tokens=[BOS, EOS])]
        ),
        1,
    ),
    "bert": (BertProcessing(EOS, BOS), 1),
    "none": (TemplateProcessing(single="<s> $A", special_tokens=[BOS]), 0),
}


def ending(name):
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.post_processor = ENDS[name][0]
    return tokenizer


@pytest.mark.parametrize("name", ENDS)
def test_the_end_is_taken_off_and_nothing_else(name):
    tokenizer, (_, count) = ending(name), ENDS[name]
    assert around(tokenizer)[1] == count
    for text in ("return", "a </s>", ""):
        whole = tokenizer(text)["input_ids"]
        assert prompt_ids(text, tokenizer) == whole[: len(whole) - count]
    own = tokenizer("a </s>", add_special_tokens=False)["input_ids"]
    assert own[-1] == EOS[1] and prompt_ids("a </s>", tokenizer)[1:] == own


def test_an_end_that_is_no_special_token_of_the_tokenizer_is_seen():
    tokenizer = ending("eos")
    tokenizer.eos_token = None
    assert around(tokenizer) == (1, 1)


@pytest.mark.parametrize(("name", "begun"), [("eos", 1), ("none", 1), ("bare", 0)])
def test_a_prompt_that_begins_with_bos_has_one(name, begun):
    tokenizer = build_tokenizer(bos=False) if name == "bare" else ending(name)
    own = tokenizer("return", add_special_tokens=False)["input_ids"]
    assert prompt_ids("<s>return", tokenizer) == [BOS[1], *own]
    assert prompt_ids("return", tokenizer) == [BOS[1]] * begun + own


def test_a_document_is_scored_without_the_end(tmp_path):
    (tmp_path / "x.txt").write_text("return a")
    rows = [
        list(scored_rows([f"text:{tmp_path}/x.txt"], ending(name), tmp_path / name))
        for name in ("eos", "none")
    ]
    assert rows[0] == rows[1] and rows[0][0]["input_ids"][-1] != EOS[1]
