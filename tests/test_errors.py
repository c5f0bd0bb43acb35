"""Messages of errors: a full disk, a broken pipe, and never a credential."""

import errno
import os
import subprocess
import sys

import pytest

from tape_ds import errors, storage
from tape_ds.errors import Problem, UserError, command, redacted
from tests.processes import ROOT

TOKEN = "hf_" + "aB3" * 10


@pytest.fixture(autouse=True)
def rank_0(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(errors, "GRACE_SECONDS", 0)


def run(error):
    @command
    def main():
        raise error

    return main()


def test_a_full_disk_is_a_message_and_not_a_traceback(tmp_path, capsys):
    error = RuntimeError("the library's own words")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "file"))
    assert run(error) == 2
    said = capsys.readouterr().err
    assert f"the disk of {tmp_path} is full" in said and "nothing was started" not in said


def test_a_disk_error_is_shown_by_its_rank_and_a_mistake_by_rank_0(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert run(OSError(errno.EROFS, "Read-only file system", "/x/file")) == 2
    assert "/x/file cannot be written" in capsys.readouterr().err
    assert run(UserError(Problem("window", 0, "too small", "1 or more"))) == 2
    assert capsys.readouterr().err == ""


def test_the_remedy_of_a_file_that_is_too_large_is_its_limit(monkeypatch, capsys):
    """Room on the disk does not help, and against a process's limit no other place does, which was named too; one of
    the file system is not raised."""
    for limit, remedy in (
        (2**20, "raise the limit (ulimit -f unlimited); then"),
        (None, "name a disk whose file"),
    ):
        monkeypatch.setattr(storage, "file_limit", lambda limit=limit: limit)
        assert run(OSError(errno.EFBIG, "File too large", "/x/file")) == 2
        said = capsys.readouterr().err
        assert (
            "a file in /x is too large" in said
            and f"remedy: {remedy}" in said
            and "another place" not in said
        )


def test_a_limit_on_open_files_is_a_message(capsys):
    assert run(OSError(errno.EMFILE, "Too many open files", "/x/file")) == 2
    said = capsys.readouterr().err
    assert (
        "ulimit -n = " in said
        and "too many open files (/x/file)" in said
        and "ulimit -n 4096" in said
    )


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file", "/x"), BrokenPipeError("of a worker")]
)
def test_other_errors_are_raised(error):
    with pytest.raises(type(error)):
        run(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"see {TOKEN}.", "see <redacted>."),
        ("sk-" + "a" * 20, "<redacted>"),
        ("AKIA" + "A" * 16, "<redacted>"),
        ("https://me:pass@host/x?y=1", "https://<redacted>@host/x?y=1"),
        ("s3://key:word@bucket/x", "s3://<redacted>@bucket/x"),
        (
            "https://h/x?X-Amz-Credential=a%2Fb&n=1&X-Amz-Signature=cd",
            "https://h/x?X-Amz-Credential=<redacted>&n=1&X-Amz-Signature=<redacted>",
        ),
        ("https://h/x?sv=1&sig=a%3D", "https://h/x?sv=1&sig=<redacted>"),
    ],
)
def test_credentials_are_taken_out(text, expected):
    assert redacted(text) == expected
    assert redacted(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "jsonl:hf://datasets/someone/books@490b980249446f2f3bd2df3a8cf085d0f2de240a/x.jsonl#text?meta.token=Github",
        "ssh://git@host/x",
        "min_document_tokens = 1024",
        "https://host:8080/x?page=2",
    ],
)
def test_other_texts_stay(text):
    assert redacted(text) == text


def test_a_message_shows_no_credential(capsys):
    problems = [
        Problem("hub_token", "canary", "is refused", "give another"),
        Problem("data", f"{'x' * 100}https://me:{TOKEN}@host", "does not open", "check it"),
        Problem("model", "m", f"the hub said {TOKEN}", "log in"),
    ]
    assert run(UserError(problems)) == 2
    said = capsys.readouterr().err
    assert "canary" not in said and TOKEN[:12] not in said and "me:" not in said
    assert "1. hub_token = '<redacted>': is refused" in said


@pytest.mark.parametrize("flush", [True, False])
def test_a_closed_pipe_is_no_traceback(flush):
    """As in ``--print_config | head -3``."""
    code = f"""
from tape_ds import storage
from tape_ds.errors import command

@command
def main():
    for number in range(100_000):
        print(number, flush={flush})

raise SystemExit(main())
"""
    line = [sys.executable, "-c", code]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as writing:
        assert writing.stdout.readline() == b"0\n"
        writing.stdout.close()
        assert writing.stderr.read() == b"" and writing.wait() == 1


def test_a_full_disk_without_a_file_s_name(capsys):
    assert run(OSError(errno.ENOSPC, "No space left on device")) == 2
    assert "no file (No space left on device)" in capsys.readouterr().err


WRITES = """
import os, subprocess, sys
from tape_ds import storage
from tape_ds.errors import command

@command
def main():
    with open("made", "w") as file:
        file.write("whole")
        print("a line")
        os.write(1, b"of a library")
        os.write(2, b"of a library")
        assert sys.stdin.read() == ""
        return subprocess.call("echo of a child; echo of a child >&2", shell=True)

raise SystemExit(main())
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_without_its_streams_does_its_work_and_exits_with_0(tmp_path, closed):
    """``sys.stdout`` was None: a command made its folder, and then failed in its last flush. And a file of the command
    got the stream's number, so that a library's lines went into it."""
    line = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, WRITES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        line,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made").read_text() == "whole"
    open_streams = {">&-", "2>&-"} - {*closed.split()}
    assert ("a line" in done.stdout) == (">&-" in open_streams)
    for stream, text in ((">&-", done.stdout), ("2>&-", done.stderr)):
        assert ("of a library" in text and "of a child" in text) == (stream in open_streams)
        assert bool(text) == (stream in open_streams)
