"""Text of an answer in pieces: together the text of all tokens, by every kind of decoder, and no piece that changes."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape_ds.serving.answer_text import AnswerText
from tape_ds.serving.token_texts import TokenTexts
from tests.serving.tokenizers_of_kinds import (
    byte_fallback,
    byte_level,
    metaspace,
    word_level,
    word_piece,
)

KINDS = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "metaspace": metaspace,
    "words": word_level,
    "word pieces": word_piece,
}


@pytest.fixture(scope="module", params=KINDS)
def texts(request):
    return TokenTexts(KINDS[request.param]())


def pieces_of(answer, ids):
    return [*(answer.add(token) for token in ids), answer.finish()]


@pytest.mark.parametrize("tokens", [1, 7, 200])
def test_pieces_are_the_text_of_all_tokens(texts, tokens):
    """Streams dropped bytes that never form a character, and lost spaces at the pieces' ends."""
    draw = random.Random(tokens)
    for _ in range(5):
        ids = [draw.randrange(len(texts.tokenizer)) for _ in range(tokens)]
        pieces = pieces_of(AnswerText(texts), ids)
        assert "".join(pieces) == texts.decode(ids)


def test_text_comes_while_tokens_do(texts):
    ids = texts.tokenizer(
        "the cat sat on the mat and the cat sat on the mat", add_special_tokens=False
    )["input_ids"]
    pieces = pieces_of(AnswerText(texts), ids)
    assert sum(bool(piece) for piece in pieces) > len(ids) // 2 and "".join(pieces) == texts.decode(
        ids
    )


def test_only_a_window_is_decoded_again(texts):
    longest = []
    decode = texts.decode

    def counted(ids):
        longest.append(len(ids))
        return decode(ids)

    ids = texts.tokenizer("the cat sat on the mat " * 100, add_special_tokens=False)["input_ids"]
    assert "".join(pieces_of(AnswerText(texts, decode=counted), ids)) == decode(ids)
    assert len(ids) > 400 and max(longest) < 80


def test_bytes_that_are_no_character_are_streamed():
    texts = TokenTexts(byte_level())
    # byte C3, which begins a character of two
    (first,) = texts.tokenizer.convert_tokens_to_ids(["Ã"])
    pieces = pieces_of(AnswerText(texts), [first] * 20)
    assert "".join(pieces) == texts.decode([first] * 20) == "\ufffd" * 20


@pytest.mark.parametrize(
    ("stops", "wanted"),
    [
        (["sat"], "the cat "),
        (["on the", "cat"], "the "),
        (["t s", "cat sat on the hat"], "the ca"),
        (["the"], ""),
        (["dog"], "the cat sat on the mat"),
    ],
)
@pytest.mark.parametrize("kind", ["byte level", "words", "metaspace"])
def test_a_text_ends_before_the_first_stop_string(kind, stops, wanted):
    texts = TokenTexts(KINDS[kind]())
    ids = texts.tokenizer("the cat sat on the mat", add_special_tokens=False)["input_ids"]
    answer = AnswerText(texts, stops)
    given = []
    for token in ids:
        given.append(answer.add(token))
        if answer.stopped:
            break
    given.append(answer.finish())
    assert "".join(given) == wanted and answer.stopped == (stops != ["dog"])


def test_no_piece_holds_a_part_of_a_stop_string():
    texts = TokenTexts(byte_level())
    answer = AnswerText(texts, ["\n\nQ:"])
    ids = texts.tokenizer("a\n\nb\n\nQ: c")["input_ids"]
    pieces = []
    for token in ids:
        pieces.append(answer.add(token))
        if answer.stopped:
            break
    assert "".join(pieces) == "a\n\nb" and answer.sent == 4


@pytest.mark.parametrize("kind", ["metaspace", "words", "byte level"])
def test_after_a_prompt_the_space_between_is_kept(kind):
    texts = TokenTexts(KINDS[kind]())
    ids = texts.tokenizer("the cat sat", add_special_tokens=False)["input_ids"]
    split = len(ids) - 1
    answer = AnswerText(texts, context=ids[:split])
    rest = "".join(pieces_of(answer, ids[split:]))
    assert texts.decode(ids[:split]) + rest == "the cat sat"


def test_texts_and_bytes_of_tokens():
    texts = TokenTexts(byte_level())
    first = texts.tokenizer.convert_tokens_to_ids("Ã")
    assert texts.of(first) == ("bytes:\\xc3", (0xC3,))
    space = texts.tokenizer.convert_tokens_to_ids("Ġ")
    assert texts.of(space) == (" ", (32,))
    fallback = TokenTexts(byte_fallback())
    euro = fallback.tokenizer.convert_tokens_to_ids("<0xE2>")
    assert fallback.of(euro) == ("bytes:\\xe2", (0xE2,))
    assert fallback.of(fallback.tokenizer.convert_tokens_to_ids("▁the")) == (" the", tuple(b" the"))


def test_special_tokens_have_no_text_in_an_answer():
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "</s>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.decoder = decoders.Fuse()
    words.add_special_tokens([AddedToken("</s>", special=True)])
    texts = TokenTexts(
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>")
    )
    assert "".join(pieces_of(AnswerText(texts), [1, 2, 1])) == texts.decode([1, 2, 1]) == "aa"
    assert texts.of(2)[0] == "</s>"
