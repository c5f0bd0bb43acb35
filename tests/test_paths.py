"""What a person wrote as a path or a text is looked at without failing, and refused by name where it can be none.

Every case below once ended in a traceback, but for empty texts: what a shell makes of a variable that is not set was
the current folder, and a new start.
"""

import os
from pathlib import Path

import pytest

from tape_ds import paths
from tests.config.helpers import problems_of, write

LONG = "y" * 300


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Recipes are written into the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", ["a\x00b", LONG, "d/" * 3000, "~nobody-here/x", ""])
def test_what_can_be_no_path_is_no_file_and_no_folder(text):
    assert not os.path.isfile(paths.of(text) / "x") and not os.path.isdir(paths.of(text) / "x")


def test_home_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.of("~/runs") == tmp_path / "runs" and paths.of("~nobody-here/x") == Path("~nobody-here/x")


REFUSED = {
    "a null byte": ("run_name", "a\x00b", "null byte"),
    "a null byte deep inside": ("rope_parameters", {"rope_type": ["a\x00b"]}, "null byte"),
    "bytes that are no text": ("run_name", "a\udcffb", "not UTF-8"),
    "a long name": ("output_dir", f"runs/{LONG}", "longer than a path"),
    "a long path": ("resume_from_checkpoint", "c/" * 3000, "longer than a path"),
    "no folder at all": ("output_dir", "", "empty"),
    "no checkpoint at all": ("resume_from_checkpoint", "", "empty"),
    "a user nobody knows": ("output_dir", "~nobody-here/runs", "no user 'nobody-here'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_cannot_be_is_refused_by_name(name):
    field, value, wrong = REFUSED[name]
    if isinstance(value, dict):
        words = [f"--{field}.rope_type", '["a\x00b"]'.replace("\x00", "\\u0000")]
    else:
        words = [f"--{field}", value]
    found, _ = problems_of("--recipe", write(), *words)
    assert set(found) == {field} and wrong in found[field].wrong


@pytest.mark.parametrize("name", [f"{LONG}.yaml", LONG, "~nobody-here/x.yaml", "a\x00b"])
def test_a_recipe_that_can_be_no_file_is_none(name):
    found, _ = problems_of("--recipe", name)
    assert found["recipe"].wrong == "no such recipe"


@pytest.mark.parametrize("name", [LONG, "~nobody-here/x", "a\x00b"])
def test_a_deepspeed_file_that_can_be_no_file_is_none(name):
    found, _ = problems_of("--recipe", write(), "--deepspeed", name)
    assert set(found) == {"deepspeed"}
