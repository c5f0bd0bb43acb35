"""A code that a launcher loses on its way reaches whoever asked for it."""

import pytest

from tape_ds.health import verdict


def test_rank_0_leaves_its_code_where_somebody_asks(tmp_path, monkeypatch):
    path = tmp_path / "code"
    verdict.leave(3)
    monkeypatch.setenv(verdict.FILE, str(path))
    monkeypatch.setenv("RANK", "1")
    verdict.leave(3)
    assert verdict.read(path) is None
    monkeypatch.setenv("RANK", "0")
    verdict.leave(3)
    assert verdict.read(path) == 3


@pytest.mark.parametrize("text", ["", "x"])
def test_a_file_that_says_nothing_is_none(text, tmp_path):
    (tmp_path / "code").write_text(text)
    assert verdict.read(tmp_path / "code") is None


def test_a_disk_that_refuses_it_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv(verdict.FILE, str(tmp_path / "no" / "such"))
    monkeypatch.delenv("RANK", raising=False)
    verdict.leave(2)
