"""A code that a launcher loses on its way reaches whoever asked for it."""

import pytest

from tape_ds.resilience import exit_code_file


def test_rank_0_leaves_its_code_where_somebody_asks(tmp_path, monkeypatch):
    path = tmp_path / "code"
    exit_code_file.leave(3)
    monkeypatch.setenv(exit_code_file.FILE, str(path))
    monkeypatch.setenv("RANK", "1")
    exit_code_file.leave(3)
    assert exit_code_file.read(path) is None
    monkeypatch.setenv("RANK", "0")
    exit_code_file.leave(3)
    assert exit_code_file.read(path) == 3


@pytest.mark.parametrize("text", ["", "x"])
def test_a_file_that_says_nothing_is_none(text, tmp_path):
    (tmp_path / "code").write_text(text)
    assert exit_code_file.read(tmp_path / "code") is None


def test_a_disk_that_refuses_it_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv(exit_code_file.FILE, str(tmp_path / "no" / "such"))
    monkeypatch.delenv("RANK", raising=False)
    exit_code_file.leave(2)
