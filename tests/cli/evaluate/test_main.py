"""``tape-ds evaluate``: which commands there are, and what a wrong one is told."""

import re

import pytest

from tape_ds.cli import evaluate as start


def test_without_a_command_it_says_which_there_are(capsys):
    assert start.main([]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"tape-ds evaluate {name}\b", shown) for name in start.COMMANDS)


@pytest.mark.parametrize("name", start.COMMANDS)
def test_every_command_explains_itself(name, capsys):
    """argparse leaves by itself; a command with commands of its own comes back."""
    try:
        code = start.main([name, "--help"])
    except SystemExit as ended:
        code = ended.code
    assert code == 0
    assert f"tape-ds evaluate {name}" in capsys.readouterr().out


def test_an_unknown_command(capsys):
    assert start.main(["perplexty"]) == 2
    assert "did you mean 'perplexity'?" in capsys.readouterr().err


@pytest.mark.parametrize("put", [["--local_rank=1"], ["--local_rank", "1"], ["--local-rank=1"]], ids=str)
def test_the_argument_of_a_launcher_is_not_a_command(put, capsys):
    assert start.main([*put, "perplexty"]) == 2
    assert "command = 'perplexty'" in capsys.readouterr().err
