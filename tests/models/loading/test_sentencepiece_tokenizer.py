"""A sentencepiece model as a tokenizer: the file's own settings decide, and the ids are sentencepiece's."""

import io

import pytest
import sentencepiece

from tape_ds.errors import UserError
from tape_ds.models.loading import sentencepiece_tokenizer

LINES = [
    *("<html><s>bold</s> said the quick brown fox</html>" for _ in range(40)),
    *("x<sa y<sb z<sc q<sd" for _ in range(40)),
    *("    return x if x else '    ' # two  spaces" for _ in range(40)),
    *("the fox ran and the dogs ran and 1234 of them hid" for _ in range(40)),
]
TEXTS = [
    *LINES[::40],
    "",
    " ",
    "   three spaces first and last   ",
    "tabs\t\tand\nlines\n\n",
    "\ufb01ne \uff21\uff22\uff23 é e\u0301",  # what NFKC would change
    "日本語 🦙 \u200b\u00a0",
    "1234567890",
    "spelt out: <s> </s> <unk> <0x0A>",
    "the fox<reserved_1>ran        and   hid",
]


def train(path, **settings):
    """A tiny model with the settings that matter here; returns its processor."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        **{
            "model_type": "bpe",
            "vocab_size": 340,
            "byte_fallback": True,
            "character_coverage": 1.0,
            **settings,
        },
    )
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
SETTINGS = {
    "llama": PLAIN | {"add_dummy_prefix": True, "allow_whitespace_only_pieces": True},
    "baichuan 2": PLAIN
    | {"add_dummy_prefix": False, "allow_whitespace_only_pieces": True, "split_digits": True}
    | {"user_defined_symbols": ["<reserved_1>", "▁▁▁▁"]},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_ids_are_sentencepiece_s(tmp_path, name):
    processor = train(tmp_path / "tokenizer.model", **SETTINGS[name])
    tokenizer = sentencepiece_tokenizer.load(tmp_path / "tokenizer.model")
    assert len(tokenizer) == processor.get_piece_size()
    for text in TEXTS:
        ids = tokenizer(text, split_special_tokens=True)["input_ids"]
        assert ids == processor.encode(text), text
        assert tokenizer.decode(ids) == processor.decode(ids)


def test_letters_never_merge_into_a_special_token(tmp_path):
    """The pieces "<s" and ">" together would be the beginning of a text in its middle."""
    processor = train(
        tmp_path / "tokenizer.model", **SETTINGS["llama"], split_by_unicode_script=False
    )
    tokenizer = sentencepiece_tokenizer.load(tmp_path / "tokenizer.model")
    assert {"<s", ">"} <= tokenizer.get_vocab().keys()
    ids = tokenizer("<s> bold </s>", split_special_tokens=True)["input_ids"]
    assert ids == processor.encode("<s> bold </s>") and not {0, 1, 2} & set(ids)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"model_type": "unigram", "vocab_size": 300}, "another type than BPE"),
        (PLAIN | {"normalization_rule_name": "nmt_nfkc"}, "normalises texts"),
        (PLAIN | {"remove_extra_whitespaces": True}, "normalises texts"),
    ],
)
def test_other_models_are_refused(tmp_path, settings, words):
    train(tmp_path / "tokenizer.model", **settings)
    with pytest.raises(UserError, match=words):
        sentencepiece_tokenizer.load(tmp_path / "tokenizer.model")
