"""Texts that can be no path are refused by name, without a traceback."""

import os
from pathlib import Path

import pytest

from tape_ds import paths
from tests.config.helpers import problems_of, write

LONG = "y" * 300


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", ["a\x00b", LONG, "d/" * 3000, "~nobody-here/x", ""])
def test_a_text_that_can_be_no_path_is_no_file_and_no_folder(text):
    assert not os.path.isfile(paths.of(text) / "x") and not os.path.isdir(paths.of(text) / "x")


def test_home_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.of("~/runs") == tmp_path / "runs" and paths.of("~nobody-here/x") == Path("~nobody-here/x")


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("run_name", "a\x00b", "null byte"),
        ("run_name", "a\udcffb", "not UTF-8"),
        ("output_dir", f"runs/{LONG}", "longer than a path"),
        ("output_dir", "", "empty"),
        ("resume_from_checkpoint", "", "empty"),
        ("output_dir", "~nobody-here/runs", "no user 'nobody-here'"),
    ],
)
def test_a_text_that_can_be_no_path_is_refused(field, value, wrong):
    found, _ = problems_of("--recipe", write(), f"--{field}", value)
    assert set(found) == {field} and wrong in found[field].wrong
