"""``python -m evaluation scrolls`` finds its commands, and says so where there is no such."""

import pytest

from evaluation import scrolls
from evaluation.__main__ import main


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]], ids=str)
def test_help_names_them(words, capsys):
    assert scrolls.main(words) == 0
    said = capsys.readouterr().out
    assert "scrolls generate MODEL" in said and "scrolls compare" in said


def test_another_is_a_mistake(capsys):
    assert main(["scrolls", "compere"]) == 2
    assert "did you mean 'compare'?" in capsys.readouterr().err
