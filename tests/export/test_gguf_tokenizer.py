"""A tokenizer in a GGUF file: llama.cpp makes the same ids of it, or it is refused by name. llama.cpp itself:
``test_llama_cpp.py``."""

import hashlib
import itertools
from types import SimpleNamespace

import pytest
from gguf import GGUFReader, GGUFWriter, TokenType
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import UserError
from tape_ds.export import gguf_tokenizer

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
TEXTS = [
    "Hello world",
    "def main(argv):\n    return 12345\n",
    "two  spaces, \u00e9t\u00e9, \u4f60\u597d",
    "a\tb\n\n\nc",
]


def config(rows=512):
    return SimpleNamespace(vocab_size=rows, **IDS)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A SentencePiece tokenizer of 512 pieces, as `tape-ds train-tokenizer` makes it."""
    folder = tmp_path_factory.mktemp("tokenizers") / "pieces"
    tokenizers.train(["stdlib"], 512, folder, max_characters=100_000)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level BPE of 400 tokens with two added ones, and a template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=398, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(
        ["def main(argv): return the other of these things" * 3] * 20, trainer
    )
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    made.add_tokens(["<think>"])
    made.chat_template = "{{ messages[0]['content'] }}"
    return made


def joined_by_scores(text, found):
    """As llama.cpp joins pieces: again and again the two neighbours whose whole has the best score, the first of
    equals; what is no piece then becomes bytes."""
    numbers = {token: number for number, token in enumerate(found.tokens)}
    parts = list(("\u2581" + text if found.space_prefix else text).replace(" ", "\u2581"))
    while True:
        best = None
        for place, (left, right) in enumerate(itertools.pairwise(parts)):
            number = numbers.get(left + right)
            if number is not None and (best is None or found.scores[number] > best[0]):
                best = (found.scores[number], place)
        if best is None:
            break
        place = best[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    ids = []
    for part in parts:
        unknown = [numbers[f"<0x{byte:02X}>"] for byte in part.encode()]
        ids += [numbers[part]] if part in numbers else unknown
    return ids


def test_scores_join_the_pieces_that_the_merges_join(pieces):
    """One score for every piece, as gguf's LlamaHfVocab has it, joins others."""
    found = gguf_tokenizer.read(pieces, config(), "auto", [2])
    assert found.model == "llama" and found.pre == "default" and not found.merges
    for text in TEXTS:
        assert joined_by_scores(text, found) == pieces(text, add_special_tokens=False)["input_ids"]
    assert len(found.tokens) == len(found.scores) == len(found.types) == 512
    kinds = [found.types[number] for number in (0, 1, 2, found.tokens.index("<0x0A>"), 511)]
    assert kinds[1:] == [TokenType.CONTROL, TokenType.CONTROL, TokenType.BYTE, TokenType.NORMAL]
    assert found.special_ids["bos"] == 1 and found.special_ids["eos"] == 2
    assert found.adds == {"bos": pieces("")["input_ids"] == [1], "eos": False}


def test_rows_without_a_token_are_marked(pieces):
    found = gguf_tokenizer.read(pieces, config(520), "auto", [2])
    assert found.tokens[512:514] == ["[PAD512]", "[PAD513]"] and set(found.types[512:]) == {
        TokenType.UNUSED
    }
    with pytest.raises(UserError, match="500 rows for a tokenizer of 512 tokens"):
        gguf_tokenizer.read(pieces, config(500), "auto", [2])


def test_a_known_pre_tokenizer_is_named_by_its_digest(byte_level, monkeypatch):
    table = gguf_tokenizer._table()
    digest = hashlib.sha256(str(byte_level.encode(table["text"])).encode()).hexdigest()
    with pytest.raises(
        UserError, match=f"tokenizer = '{digest}': llama.cpp knows no pre-tokenizer"
    ):
        gguf_tokenizer.read(byte_level, config(), "auto", [])
    monkeypatch.setattr(gguf_tokenizer, "_table", lambda: table | {"names": {digest: "gpt-2"}})
    assert gguf_tokenizer.read(byte_level, config(), "auto", []).pre == "gpt-2"


def test_a_named_pre_tokenizer_is_taken(byte_level, tmp_path):
    """With tokens, merges, special tokens and the template."""
    found = gguf_tokenizer.read(byte_level, config(400), "gpt-2", [5, 6, 7])
    assert (found.model, found.pre) == ("gpt2", "gpt-2")
    end, think = byte_level.convert_tokens_to_ids(["<|end|>", "<think>"])
    assert found.types[end] == TokenType.CONTROL and found.types[think] == TokenType.USER_DEFINED
    assert found.special_ids == {"bos": 1, "eos": end, "eot": 5, "eom": 6}
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    found.write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields = {
        name: field.contents() for name, field in GGUFReader(tmp_path / "x.gguf").fields.items()
    }
    assert fields["tokenizer.chat_template"] == "{{ messages[0]['content'] }}"
    assert (
        fields["tokenizer.ggml.tokens"] == found.tokens
        and len(fields["tokenizer.ggml.merges"]) > 10
    )
    assert (
        fields["tokenizer.ggml.eot_token_id"] == 5
        and fields["tokenizer.ggml.add_bos_token"] is False
    )


def test_what_llama_cpp_has_no_tokenizer_for_is_refused():
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(UserError, match=r"tokenizer = 'WordLevel': llama\.cpp's models") as caught:
        gguf_tokenizer.read(PreTrainedTokenizerFast(tokenizer_object=words), config(), "auto", [])
    assert caught.value.problems[0].remedy.startswith("--gguf_tokenizer none")
    letters = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    with pytest.raises(UserError, match="letters without bytes"):
        gguf_tokenizer.read(PreTrainedTokenizerFast(tokenizer_object=letters), config(), "auto", [])


def test_merges_in_no_order_of_scores_are_refused():
    """Scores belong to pieces, and a merge list may make a piece at two places."""
    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    merges = [("ab", "c"), ("a", "b"), ("a", "bc"), ("b", "c")]
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    with pytest.raises(UserError, match="merges make 'abc' at two places"):
        gguf_tokenizer.read(PreTrainedTokenizerFast(tokenizer_object=backend), config(), "auto", [])


def test_without_a_tokenizer_the_file_has_ids_alone():
    assert gguf_tokenizer.read(None, config(), "auto", [2]).model == "none"
    known = gguf_tokenizer.pre_tokenizers()
    assert {"llama-bpe", "qwen2", "smollm", "gpt-2"} <= set(known)
    assert gguf_tokenizer.check_choice("qwen2") == [] and gguf_tokenizer.check_choice("qwen3") != []
