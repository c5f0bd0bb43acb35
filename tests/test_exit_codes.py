"""Exit codes, and the file by which rank 0 passes its code through a launcher."""

from tape_ds import exit_codes
from tape_ds.exit_codes import ExitCode


def test_codes_are_those_that_the_docs_promise():
    codes = {"OK": 0, "FAILURE": 1, "USER_ERROR": 2, "GUARD": 3, "WATCHDOG": 4, "DOES_NOT_FIT": 5}
    assert {code.name: int(code) for code in ExitCode} == codes


def test_rank_0_leaves_its_code_in_the_file_that_was_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "code"
    exit_codes.leave(3)
    monkeypatch.setenv(exit_codes.FILE, str(path))
    monkeypatch.setenv("RANK", "1")
    exit_codes.leave(3)
    assert exit_codes.read(path) is None
    monkeypatch.setenv("RANK", "0")
    exit_codes.leave(3)
    assert exit_codes.read(path) == 3
