"""A mistake on a command line is one line with the option; lengths are numbers of tokens."""

import argparse

import pytest

from tape_ds import arguments
from tape_ds.arguments import Parser


@pytest.fixture
def parser():
    made = Parser(prog="command")
    made.add_argument("model")
    made.add_argument("--lengths", type=int, nargs="+", required=True)
    made.add_argument("--prompt")
    return made


@pytest.mark.parametrize(
    "words, said",
    [
        (["--length", "2"], "--length 2: unknown option; did you mean '--lengths'?"),
        (["m", "--lengths", "x"], "argument --lengths: invalid int value: 'x'"),
        (["m"], "the following arguments are required: --lengths"),
    ],
)
def test_a_mistake_is_one_line(parser, capsys, words, said):
    """A mistyped option is missing, too: argparse would report only that."""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize("form", ["--new-tokens 5", "--new-tokens=5", "--new_tokens 5"])
def test_hyphens_are_underscores(parser, form):
    parser.add_argument("--new_tokens", type=int)
    asked = parser.parse_args(["m", "--lengths", "2", "--prompt", "a-b", *form.split()])
    assert (asked.new_tokens, asked.prompt) == (5, "a-b")


def test_a_credential_is_not_repeated(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["m", "--tokn", "hf_" + "a" * 20])
    assert "aaaa" not in capsys.readouterr().err


def test_lengths_are_tokens():
    assert [arguments.length(text) for text in ("512", "2k", "128K")] == [512, 2048, 131_072]
    for wrong in ("0", "1.5k", "²"):
        with pytest.raises(argparse.ArgumentTypeError):
            arguments.length(wrong)


def test_an_unknown_choice_is_named_with_the_closest(capsys):
    parser = Parser(prog="x")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    with pytest.raises(SystemExit):
        parser.parse_args(["--dtype", "float3"])
    assert "did you mean 'float32'" in capsys.readouterr().err
