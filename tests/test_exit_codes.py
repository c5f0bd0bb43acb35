"""A code that a launcher loses on its way reaches whoever asked for it."""

import pytest

from tape_ds import exit_codes
from tape_ds.exit_codes import ExitCode


def test_codes_are_those_that_the_docs_promise():
    codes = {"OK": 0, "FAILURE": 1, "USER_ERROR": 2, "GUARD": 3, "WATCHDOG": 4}
    assert {code.name: int(code) for code in ExitCode} == codes


def test_rank_0_leaves_its_code_where_somebody_asks(tmp_path, monkeypatch):
    path = tmp_path / "code"
    exit_codes.leave(3)
    monkeypatch.setenv(exit_codes.FILE, str(path))
    monkeypatch.setenv("RANK", "1")
    exit_codes.leave(3)
    assert exit_codes.read(path) is None
    monkeypatch.setenv("RANK", "0")
    exit_codes.leave(3)
    assert exit_codes.read(path) == 3


@pytest.mark.parametrize("text", ["", "x"])
def test_a_file_that_says_nothing_is_none(text, tmp_path):
    (tmp_path / "code").write_text(text)
    assert exit_codes.read(tmp_path / "code") is None


def test_a_disk_that_refuses_it_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv(exit_codes.FILE, str(tmp_path / "no" / "such"))
    monkeypatch.delenv("RANK", raising=False)
    exit_codes.leave(2)
