"""Machines of a hostfile are told what to do, all of them, and those that fail are named."""

import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
from deepspeed.launcher import runner

from tape_ds.distributed import ssh
from tape_ds.errors import UserError


def test_a_hostfile_is_deepspeeds(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\n\nme@node1 slots=8\nnode2 slots=4\n")
    assert ssh.slots_of(path) == {"me@node1": 8, "node2": 4}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (None, "no such file"),
        ("node1:8\n", "bad entry: node1:8"),
        ("node1 slots=8\nnode1 slots=8\n", "multiple entries for node1"),
        ("# nobody\n", "empty"),
    ],
)
def test_a_hostfile_that_deepspeed_cannot_use_is_said(text, wrong, tmp_path):
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=re.escape(f"--hostfile = '{path}'") + f".*{wrong}"):
        ssh.slots_of(path)


def test_a_hostfile_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    """It ended in a traceback."""

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(runner, "fetch_hostfile", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        ssh.slots_of(tmp_path / "hosts")


def test_all_machines_are_told_and_those_that_fail_are_named(fake_ssh, tmp_path, monkeypatch):
    """Over the connection that pdsh makes."""
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-F my_config")
    commands = {host: (f"cat > {tmp_path}/{host}", f"text of {host}") for host in ("good1", "closed", "good2")}
    said = ssh.tell_each(commands | {"good3": ("exit 3", "")}, 2222)
    assert said == {"closed": "ssh: connect to host closed port 22: Connection refused", "good3": "exit code 3"}
    assert (tmp_path / "good2").read_text() == "text of good2"
    assert all("BatchMode=yes" in line and "-F my_config -p 2222" in line for line in fake_ssh.read_text().splitlines())


@pytest.mark.parametrize(
    ("of", "host", "dies"),
    [
        ("pretrain_c4.py", socket.gethostname(), True),
        ("extend_llama.py", socket.gethostname(), False),
        ("pretrain_c4.py", "another.machine", False),
    ],
)
def test_only_a_process_of_this_run_on_its_machine_is_killed(of, host, dies, fake_ssh):
    with subprocess.Popen(["bash", "-c", f"exec -a {shlex.quote('python pretrain_c4.py')} sleep 60"]) as victim:
        try:
            while b"pretrain_c4" not in Path(f"/proc/{victim.pid}/cmdline").read_bytes():
                assert victim.poll() is None
            ssh.kill(["good", "locked"], None, {host: [victim.pid]}, of)
            assert (victim.wait() == -9) if dies else (victim.poll() is None)
        finally:
            victim.kill()
