"""``tape-ds convert``: there and back, published checkpoints, rows dropped and never added."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from tape_ds import TapeForCausalLM
from tape_ds.cli import convert
from tests.models.helpers import VOCABULARY, tokens
from tests.models.loading.test_families import PUBLISHED, publish
from tests.models.loading.test_reference_checkpoint import golden
from tests.models.test_rows import tokenizer_of


def llama(folder, name="llama 3", tokens_it_has=VOCABULARY, **changes):
    """A published folder with a tokenizer."""
    model = publish(folder, PUBLISHED[name] | changes)
    tokenizer_of(tokens_it_has).save_pretrained(folder)
    return model


def run(*arguments):
    return convert.main(list(map(str, arguments)))


@pytest.mark.parametrize("name", ["llama 3", "qwen2"])
def test_there_and_back(tmp_path, name):
    model = llama(tmp_path / "base", name)
    assert (
        run(
            "llama-to-tape",
            tmp_path / "base",
            f"{tmp_path / 'tape'}/",
            "--position_encoding",
            "rope",
        )
        == 0
    )
    assert run("tape-to-llama", tmp_path / "tape", tmp_path / "back") == 0
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "tape")) is TapeForCausalLM
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert type(back) is (Qwen2ForCausalLM if name == "qwen2" else type(model))
    ids = tokens(1, 20)
    assert torch.equal(back(ids).logits, model(ids).logits)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "back")) == VOCABULARY


def test_rows_are_dropped_and_named(tmp_path, capsys):
    """A checkpoint with a row for [PAD], and its tokenizer with the token, onto a base without."""
    model = llama(tmp_path / "base", tokens_it_has=VOCABULARY + 1, vocab_size=VOCABULARY + 1)
    tokenizer_of(VOCABULARY).save_pretrained(tmp_path / "plain")
    arguments = ("llama-to-tape", tmp_path / "base", tmp_path / "tape", "--rows", VOCABULARY)
    assert run(*arguments) == 2
    assert "the tokenizer has tokens beyond them: 'last'" in capsys.readouterr().err
    assert not (tmp_path / "tape").exists()
    assert run(*arguments, "--tokenizer", tmp_path / "plain") == 0
    assert f"rows of the vocabulary: {VOCABULARY + 1} -> {VOCABULARY}" in capsys.readouterr().out
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "tape")
    assert (
        ours.config.vocab_size
        == VOCABULARY
        == len(AutoTokenizer.from_pretrained(tmp_path / "tape"))
    )
    assert torch.equal(ours.model.embed_tokens.weight, model.model.embed_tokens.weight[:VOCABULARY])


@pytest.mark.parametrize(
    "has, arguments, words",
    [
        (61, ("--rows", 62), "rows are never added"),
        (62, (), "no row for 'last'"),
        (61, ("--rows", 0, "--position_options", "[3]"), "2 problems"),
        (61, ("--position_encoding", "ropee"), "did you mean 'rope'"),
    ],
)
def test_refusals_come_before_anything_is_written(tmp_path, capsys, has, arguments, words):
    llama(tmp_path / "base", tokens_it_has=has)
    assert run("llama-to-tape", tmp_path / "base", tmp_path / "tape", *arguments) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_reference_checkpoint_with_one_row_more_than_its_base(tmp_path):
    _, config, weights = golden("adape")
    size = config["vocab_size"]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat((weights[name], weights[name][:1]))
    source = tmp_path / "published"
    source.mkdir()
    save_file({name: x.contiguous() for name, x in weights.items()}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(config | {"vocab_size": size + 1}))
    tokenizer_of(size).save_pretrained(tmp_path / "tokenizer")
    whole = ("reference-to-tape", source, tmp_path / "whole", "--variant", "adape")
    assert run(*whole) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "whole").config.vocab_size == size + 1
    assert not (tmp_path / "whole" / "tokenizer.json").exists()
    assert run("reference-to-tape", source, tmp_path / "new") == 2, "no variant"
    assert run("reference-to-tape", tmp_path, tmp_path / "new", "--variant", "adape") == 2, (
        "no checkpoint"
    )
    cut = ("reference-to-tape", source, tmp_path / "cut", "--variant", "adape", "--rows", size)
    assert run(*cut) == 2
    assert run(*cut, "--tokenizer", tmp_path / "tokenizer") == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "cut").config.vocab_size == size
    assert (tmp_path / "cut" / "tokenizer.json").exists()
