"""A mistake on a command line is one line that names the argument, its value and what was meant."""

import pytest

from tape_ds.arguments import Parser


@pytest.fixture
def parser():
    made = Parser(prog="command", description="What it does.\n\n    as it is written")
    made.add_argument("model")
    made.add_argument("--lengths", type=int, nargs="+", required=True)
    made.add_argument("--dtype", choices=("float32", "bfloat16"))
    made.add_argument("--prompt")
    return made


@pytest.mark.parametrize(
    "words, said",
    [
        (["--length", "2"], "--length 2: unknown option; did you mean '--lengths'?"),
        (["m", "--length=2"], "--length=2: unknown option; did you mean '--lengths'?"),
        (
            ["m", "--lengths", "2", "--zzz", "--dtype"],
            "--zzz: unknown option; one of: --dtype, --help, --lengths, --prompt",
        ),
        (
            ["m", "--lengths", "2", "--dtype", "float3"],
            "argument --dtype: 'float3' is unknown; did you mean 'float32'?",
        ),
        (["m", "--lengths", "x"], "argument --lengths: invalid int value: 'x'"),
        (["m"], "the following arguments are required: --lengths"),
        (["m", "--lengths", "2", "--pro", "x"], "--pro x: unknown option; did you mean '--prompt'?"),
    ],
)
def test_a_mistake_is_one_line(parser, capsys, words, said):
    """An option that is mistyped is missing, too: argparse by itself would say that alone."""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_what_is_right_is_read(parser):
    own = parser.parse_args(["m", "--lengths", "2", "3", "--prompt", "--not an option", "--dtype=float32"])
    assert (own.model, own.lengths, own.prompt, own.dtype) == ("m", [2, 3], "--not an option", "float32")


def test_options_that_are_handed_on_are_no_mistake(parser):
    assert parser.parse_known_args(["m", "--lengths", "2", "--max_steps", "3"])[1] == ["--max_steps", "3"]


def test_the_description_is_shown_as_it_is_written(parser):
    assert "What it does.\n\n    as it is written\n" in parser.format_help()


def test_a_credential_is_not_repeated(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["m", "--tokn", "hf_" + "a" * 20])
    assert "aaaa" not in capsys.readouterr().err
