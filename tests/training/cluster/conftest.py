"""A stand-in for ssh: some machines let in and are this one, the others say what ssh would."""

import os
import sys
from pathlib import Path

import pytest

SSH = """#!/bin/sh
# ssh OPTIONS NAME COMMAND, and the last two words are what counts
while [ $# -gt 2 ]; do shift; done
echo "$1" >> "$FAKE_SSH_LOG"
case "$1" in
plain) exec sh -c "$2" ;;
good*) exec bash -c "echo 'Welcome to $1'; $2" ;;
locked) echo "me@locked: Permission denied (publickey,password)." >&2 ;;
strange) echo "Host key verification failed." >&2 ;;
changed) echo "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @
Host key verification failed." >&2 ;;
closed) echo "ssh: connect to host closed port 22: Connection refused" >&2 ;;
down) echo "ssh: connect to host down port 22: Connection timed out" >&2 ;;
asleep) exec sleep 30 ;;
*) echo "ssh: Could not resolve hostname $1: Name or service not known" >&2 ;;
esac
exit 255
"""
PDSH = """#!/bin/sh
printf '%s\\n' "$@" > "$FAKE_PDSH_LOG"
"""


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts them first on PATH, pdsh as well; a folder with ``ssh.log``, whom was asked, and ``pdsh.log``, how it was
    called."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    for name, text in (("ssh", SSH), ("pdsh", PDSH)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        monkeypatch.setenv(f"FAKE_{name.upper()}_LOG", str(folder / f"{name}.log"))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("PDSH_SSH_ARGS_APPEND", raising=False)
    return folder
