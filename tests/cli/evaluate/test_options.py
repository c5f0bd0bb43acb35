"""Numbers of tokens, true and false, and lengths for which there are no positions."""

import argparse
from types import SimpleNamespace

import pytest

from tape_ds import arguments
from tape_ds.scoring import models


class Model:
    name_or_path = "gpt2"
    position_limit = 1024
    known_length = 8192


class Endless(Model):
    position_limit = None


@pytest.mark.parametrize(("text", "tokens"), [("512", 512), ("2k", 2048), ("128K", 131_072), ("1", 1)])
def test_lengths_are_tokens(text, tokens):
    assert arguments.length(text) == tokens


@pytest.mark.parametrize("text", ["", "k", "0", "-1", "1.5k", "2m", "1e3", "²"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no number of tokens"):
        arguments.length(text)


def test_true_and_false():
    assert [arguments.boolean(text) for text in ("true", "False", "TRUE")] == [True, False, True]
    with pytest.raises(argparse.ArgumentTypeError, match="write true or false"):
        arguments.boolean("yes")


def test_lengths_beyond_a_table_of_positions_are_problems_one_each():
    problems = models.check_lengths("--lengths", [512, 1024, 2048, 4096], Model())
    assert [problem.value for problem in problems] == [2048, 4096]
    assert "positions for 1024 tokens and no more" in problems[0].wrong
    assert models.check_lengths("--lengths", [1 << 20], Endless()) == []


def test_lengths_beyond_the_native_one_are_a_note(capsys, monkeypatch):
    """100k on a model made for 8k is asked for on purpose, or by mistake: it is done, and told."""
    models.print_notes(Model(), [4096, 8192], bos=False)
    assert capsys.readouterr().err == ""
    models.print_notes(Model(), [102_400, 4096], bos=False)
    said = capsys.readouterr().err
    assert said == "note: 102,400 tokens are 12.5 times the native length of gpt2, 8,192\n"
    monkeypatch.setenv("RANK", "1")
    models.print_notes(Model(), [102_400], bos=False)
    assert capsys.readouterr().err == ""


def test_a_llama_that_begins_texts_without_its_bos_is_a_note(capsys, monkeypatch):
    """Perplexities and passkeys were those of texts without BOS, without a word."""
    asked = SimpleNamespace(tokenizer=lambda: "its tokenizer", config="its configuration", known_length=None)
    told = {("its tokenizer", "its configuration"): {"BOS": "no <s>"}}
    monkeypatch.setattr("tape_ds.data.tokenizer.bos_note", lambda *given: told[given])
    models.print_notes(asked, [1])
    assert capsys.readouterr().err == "note: no <s>\n"
    monkeypatch.setenv("RANK", "1")
    models.print_notes(asked, [1])
    assert capsys.readouterr().err == ""
