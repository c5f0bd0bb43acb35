"""Texts that can be no path are refused by name, without a traceback."""

from pathlib import Path

import pytest

from tape_ds import paths
from tests.config.helpers import problems_of, write


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("run_name", "a\x00b", "null byte"),
        ("run_name", "a\udcffb", "not UTF-8"),
        ("output_dir", f"runs/{'y' * 256}", "longer than a path"),
        ("output_dir", "", "empty"),
        ("output_dir", "~nobody-here/runs", "no user 'nobody-here'"),
    ],
)
def test_a_text_that_can_be_no_path_is_refused(field, value, wrong, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found, _ = problems_of("--recipe", write(), f"--{field}", value)
    assert set(found) == {field} and wrong in found[field].wrong


def test_a_new_folder_is_neither_there_nor_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for folder, wrong in (
        (tmp_path, "exists"),
        (tmp_path / "file" / "out", "is a file"),
        (tmp_path / "link" / "out", "link is a link to nothing"),
        (Path("x" * 300), "long"),
    ):
        (problem,) = paths.check_new("out", folder)
        assert wrong in problem.wrong
    assert paths.check_new("out", tmp_path / "new") == []
