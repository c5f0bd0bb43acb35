"""The ranks that the tests of this room share, and a stand-in for ssh."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.group import Group


@pytest.fixture(scope="session")
def group() -> Iterator[Group]:
    """One group for the session; it starts with its first case."""
    living = Group()
    yield living
    living.end()


SSH = """#!/bin/sh
# ssh OPTIONS NAME COMMAND, and the last two words are what counts
echo "$@" >> "$FAKE_SSH_LOG"
while [ $# -gt 2 ]; do shift; done
case "$1" in
good*) exec bash -c "echo 'Welcome to $1'; $2" ;;
esac
echo "ssh: connect to host $1 port 22: Connection refused" >&2
exit 255
"""


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts it first on PATH; the file that tells how it was called."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("FAKE_SSH_LOG", str(folder / "log"))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("PDSH_SSH_ARGS_APPEND", raising=False)
    return folder / "log"
