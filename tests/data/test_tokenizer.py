"""Training a tokenizer: the same ids as sentencepiece, texts that survive, the same files every time."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, LlamaConfig

from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.sources import parse, parse_all
from tape_ds.data.tokenized import tokenizer_fingerprint
from tape_ds.errors import UserError

DATA = ["stdlib:ast.py", "stdlib:json/decoder.py"]
NASTY = [
    "",
    " ",
    "  two spaces first",
    "one\ntwo\n\n\nfive\r\n",
    "\n",
    "x" * 3000,
    "digits 1234567890 and 3.14e-10",
]
NASTY += [
    "\ttabs\t\tand    runs             of spaces   ",
    "spelt out: <s> </s> <unk> <0x0A> <pad>",
]
NASTY += [
    "naïve café, Ελλάδα, Привет, 日本語, 🦙👩‍👩‍👧, \u200b\u00a0\u2028",
    "nul \0 bell \a escape \x1b delete \x7f",
]
LLAMA = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "deep" / "own"
    return tokenizers.train(DATA, 700, folder), folder


@pytest.fixture(scope="module")
def held_out():
    return next(parse("stdlib:typing.py").documents("train")).text


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_round_trip_and_ids_of_sentencepiece(trained, held_out):
    tokenizer, folder = trained
    reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for text in [held_out, *NASTY]:
        ids = tokenizer(text)["input_ids"]
        assert ids == [reference.bos_id(), *reference.encode(text)]
        assert not {0, 1, 2} & set(ids[1:]), (
            "nothing is unknown, and no special token comes from text"
        )
        assert tokenizer.decode(ids[1:]) == text == tokenizer.decode(ids, skip_special_tokens=True)
    assert len(tokenizer(held_out)["input_ids"]) < len(held_out) / 2


def test_special_tokens_and_size(trained):
    tokenizer, _ = trained
    assert len(tokenizer) == tokenizer.vocab_size == 700
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<unk>", "<s>", "</s>"]
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.convert_ids_to_tokens([3, 258]) == ["<0x00>", "<0xFF>"]
    assert tokenizer("")["input_ids"] == [1], "BOS before, nothing after"
    pieces = tokenizer.convert_ids_to_tokens(range(259, 700))
    assert "▁" * 4 in pieces, "runs of spaces"
    assert {len(piece) for piece in pieces if any(map(str.isdigit, piece))} == {1}, (
        "digits are pieces alone"
    )
    assert tokenizer.convert_ids_to_tokens(tokenizer("1\n")["input_ids"]) == [
        "<s>",
        "▁",
        "1",
        "<0x0A>",
    ]


def test_beside_a_llama_it_is_still_itself(trained, tmp_path):
    """AutoTokenizer looks at config.json too: a Llama there must not turn it into a LlamaTokenizer."""
    tokenizer, _ = trained
    tokenizers.save(tokenizer, tmp_path)
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
    )
    assert tokenizer_fingerprint(AutoTokenizer.from_pretrained(tmp_path)) == tokenizer_fingerprint(
        tokenizer
    )


def qwen(folder):
    """A Qwen2 folder as transformers 4 wrote it: extra special tokens, a template, EOS that is not a text's end."""
    special = {"eos_token": "<|im_end|>", "pad_token": "<|end|>"}
    extra = ["<|im_start|>", "<|im_end|>"]
    backend = Tokenizer(
        models.BPE(
            {each: index for index, each in enumerate(["<|end|>", *extra, "a", "b", "ab"])},
            [("a", "b")],
        )
    )
    backend.add_special_tokens(["<|end|>", *extra])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "additional_special_tokens": extra,
        "chat_template": "{{ 1 }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | special))
    return AutoTokenizer.from_pretrained(folder)


def settings_of(folder):
    return json.loads((folder / "tokenizer_config.json").read_text())


def test_what_is_saved_loads_in_transformers_4(trained, tmp_path):
    """4.45 to 4.57 know no TokenizersBackend, take a list of extra_special_tokens for a mapping, and 4.45 reads no
    chat_template.jinja."""
    own = trained[0]
    tokenizers.save(own, tmp_path / "own")
    found = settings_of(tmp_path / "own")
    assert found["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert found["model_input_names"] == ["input_ids", "attention_mask"], (
        "generate refuses token_type_ids"
    )
    assert not found.keys() & {"backend", "is_local", "local_files_only", "extra_special_tokens"}

    tokenizer = qwen(tmp_path / "qwen")
    tokenizers.save(tokenizer, tmp_path / "saved")
    found = settings_of(tmp_path / "saved")
    assert found["tokenizer_class"] == "Qwen2Tokenizer" and "extra_special_tokens" not in found
    assert found["additional_special_tokens"] == ["<|im_start|>", "<|im_end|>"]
    assert (
        found["chat_template"]
        == (tmp_path / "saved" / "chat_template.jinja").read_text()
        == "{{ 1 }}"
    )
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer_fingerprint(again) == tokenizer_fingerprint(tokenizer)
    assert (
        again.all_special_tokens == tokenizer.all_special_tokens
        and again.chat_template == "{{ 1 }}"
    )


@pytest.mark.parametrize(("begin", "end"), [(False, False), (True, True)])
def test_a_llama_s_ends_are_written_down(trained, tmp_path, begin, end):
    """transformers 4 makes a LlamaTokenizer's template anew from two settings, which transformers 5 does not save."""
    _, folder = trained
    (tmp_path / "llama").mkdir()
    shutil.copy(folder / "tokenizer.model", tmp_path / "llama")
    flags = {"add_bos_token": begin, "add_eos_token": end}
    (tmp_path / "llama" / "tokenizer_config.json").write_text(json.dumps(LLAMA | flags))
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "llama")
    tokenizers.save(tokenizer, tmp_path / "saved")
    assert {name: settings_of(tmp_path / "saved")[name] for name in flags} == flags
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again("a b")["input_ids"] == tokenizer("a b")["input_ids"]


@pytest.mark.slow
def test_the_same_files_in_every_process(trained, tmp_path):
    _, folder = trained
    command = [
        sys.executable,
        "tools/train_tokenizer.py",
        "--data",
        *DATA,
        "--vocab_size",
        "700",
        "--output",
        "again",
    ]
    command[1] = str(Path(__file__).parents[2] / command[1])
    environment = {**os.environ, "PYTHONHASHSEED": "5", "OMP_NUM_THREADS": "2", "LC_ALL": "C"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert digests(tmp_path / "again") == digests(folder)


def test_cached_trains_once_and_follows_documents_and_settings(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("the quick brown fox " * 20)
    spec, cache = [f"text:{tmp_path}/*.txt"], tmp_path / "cache"
    first = tokenizers.cached(spec, 295, cache)
    assert len(first) == 295
    with monkeypatch.context() as patched:
        patched.setattr(tokenizers, "sample", None)
        again = tokenizers.cached(spec, 295, cache)
        assert tokenizer_fingerprint(again) == tokenizer_fingerprint(first)
    assert len(tokenizers.cached(spec, 294, cache)) == 294
    (tmp_path / "b.txt").write_text("jumps over the lazy dog " * 20)
    assert tokenizer_fingerprint(tokenizers.cached(spec, 295, cache)) != tokenizer_fingerprint(
        first
    )


def test_held_out_files_never_train():
    read = set(tokenizers.sample(parse_all(["stdlib"]), 10**9))
    assert not read & {document.text for document in parse("stdlib").documents("heldout")}


def test_impossible_sizes_name_the_nearest_possible(tmp_path):
    (tmp_path / "a.txt").write_text("hello world foo bar\n" * 5)
    for size, wrong in ((400, "a value <= 301"), (265, "265 vs 270")):
        with pytest.raises(UserError, match=wrong):
            tokenizers.train([f"text:{tmp_path}/a.txt"], size, tmp_path / "new")
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(UserError, match="no document has any text"):
        tokenizers.train([f"text:{tmp_path}/a.txt"], 300, tmp_path / "new")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match="no tokenizer could be read"):
        tokenizers.load_tokenizer(str(tmp_path))


def test_a_setting_that_fails_in_use_is_refused_on_loading(trained, tmp_path):
    """A traceback of transformers, on the first text."""
    _, folder = trained
    shutil.copytree(folder, tmp_path / "wrong")
    file = tmp_path / "wrong" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": [512]}))
    with pytest.raises(UserError, match="no tokenizer could be read"):
        tokenizers.load_tokenizer(str(tmp_path / "wrong"))


def test_a_folder_is_never_written_over(trained):
    with pytest.raises(UserError, match="exists"):
        tokenizers.train(DATA, 300, trained[1])


@pytest.mark.parametrize(
    ("settings", "bos", "noted"),
    [
        (LLAMA, 1, True),  # Llama 2's first files: transformers 5 begins texts with nothing
        (LLAMA | {"add_bos_token": False}, 1, False),  # on purpose
        (LLAMA, None, False),
        (LLAMA | {"tokenizer_class": "PreTrainedTokenizerFast"}, 1, False),
    ],
)
def test_a_llama_that_begins_texts_without_its_bos_is_noted(
    trained, tmp_path, settings, bos, noted
):
    shutil.copy(trained[1] / "tokenizer.model", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = LlamaConfig(bos_token_id=bos)
    config.save_pretrained(tmp_path)
    found = tokenizers.bos_note(tokenizers.load_tokenizer(str(tmp_path)), config)
    assert ("add_bos_token: true" in found.get("BOS", "")) == noted
