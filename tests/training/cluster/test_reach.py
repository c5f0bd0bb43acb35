"""Machines are asked all at once, and what ssh says of one is said with its remedy."""

import os
import platform
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tape_ds.training.cluster import reach
from tape_ds.training.cluster.hostfile import Host

FILE = Path("hosts")


def needs(checkout, port=0, **changes):
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = port or probe.getsockname()[1]
    (checkout / "train.py").touch()
    given = {
        "folder": checkout,
        "script": "train.py",
        "python": Path(sys.executable),
        "version": platform.python_version(),
        "master_address": "127.0.0.1",
        "master_port": port,
    }
    return reach.Needs(**(given | changes))


def looked(names, wanted, seconds=5.0):
    hosts = [Host(name, 2, line) for line, name in enumerate(names, 1)]
    answers = reach.ask(hosts, wanted, None, seconds)
    return answers, reach.problems(answers, wanted, FILE)


def test_machines_that_have_everything_are_no_problem(fake_ssh, tmp_path):
    answers, problems = looked(["good1", "good2"], needs(tmp_path))
    assert problems == [] and {answer.hostname for answer in answers} == {socket.gethostname()}


@pytest.mark.parametrize(
    ("name", "wrong", "remedy"),
    [
        ("locked", "without a password", "ssh-copy-id locked"),
        ("strange", "host key is not known", "`ssh strange` once"),
        ("changed", "another than before", "ssh-keygen -R changed"),
        ("closed", "no ssh server answers", "--ssh_port"),
        ("down", "does not answer", "firewall"),
        ("asleep", "does not answer", "firewall"),
        ("nowhere", "no machine of this name", "/etc/hosts"),
    ],
)
def test_what_ssh_says_is_told_with_its_remedy(name, wrong, remedy, fake_ssh, tmp_path):
    _, (problem,) = looked(["good", name], needs(tmp_path), seconds=1.5)
    assert (problem.field, problem.value) == ("hosts:2", name)
    assert wrong in problem.wrong and remedy in problem.remedy


def test_machines_are_asked_side_by_side(fake_ssh, tmp_path):
    begun = time.monotonic()
    _, problems = looked(["asleep"] * 12, needs(tmp_path), seconds=1.0)
    assert len(problems) == 12 and time.monotonic() - begun < 12


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"folder": Path("/no/such folder")}, "no folder /no/such folder"),
        ({"script": "other.py"}, "no other.py in"),
        ({"python": Path("/no/python")}, "no /no/python"),
        ({"version": "2.7.18"}, f"Python {platform.python_version()} there, 2.7.18 here"),
        ({"master_address": "no.such.name.invalid"}, "does not know no.such.name.invalid"),
    ],
)
def test_what_a_machine_lacks_is_named(changes, wrong, fake_ssh, tmp_path):
    _, (problem,) = looked(["good"], needs(tmp_path, **changes))
    assert problem.field == "hosts:1" and wrong in problem.wrong


def test_a_login_shell_that_cannot_read_the_environment_is_named(fake_ssh, tmp_path):
    """Where sh is no bash: DeepSpeed's launch would go on without a word, and without the variables."""
    if subprocess.run(["sh", "-c", "command -v source"], capture_output=True).returncode == 0:
        pytest.skip("sh knows source here")
    _, (problem,) = looked(["plain"], needs(tmp_path))
    assert "no `source`" in problem.wrong and "chsh" in problem.remedy


def test_a_port_that_is_taken_counts_on_the_first_machine_alone(fake_ssh, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _, problems = looked(["good1", "good2"], needs(tmp_path, port=port))
    assert [problem.field for problem in problems] == ["hosts:1"] and f"port {port} is taken" in problems[0].wrong


def test_two_names_of_one_machine_are_said(fake_ssh, tmp_path):
    answers, _ = looked(["good1", "good2"], needs(tmp_path))
    (said,) = reach.alike(answers)
    assert said.startswith("good1 and good2 are the same machine")


def test_a_connection_is_that_of_pdsh_and_asks_for_nothing(monkeypatch):
    """Which knows no quotes, and leaves the user's name to ssh's own configuration."""
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-F 'config'")
    command = reach.ssh("node1", 2222, 10)
    assert command[-5:] == ["-F", "'config'", "-p", "2222", "node1"] and "BatchMode=yes" in command
    assert "-l" not in command


def test_a_machine_without_hostname_is_reached_all_the_same(fake_ssh, tmp_path):
    (fake_ssh / "hostname").write_text("#!/bin/sh\nexit 127\n")
    (fake_ssh / "hostname").chmod(0o755)
    answers, problems = looked(["good"], needs(tmp_path))
    assert problems == [] and answers[0].hostname == socket.gethostname() and answers[0].address is None


@pytest.mark.parametrize(
    ("host", "of", "killed"), [(None, "sleep", True), ("another", "sleep", False), (None, "x.py", False)]
)
def test_a_process_is_killed_where_it_is_the_one_that_is_meant(host, of, killed, fake_ssh):
    victim = subprocess.Popen(["sleep", "30"])
    try:
        where = host or socket.gethostname()
        reach.kill([Host("good", 1, 1), Host("locked", 1, 2)], None, 5, {where: [victim.pid]}, of)
        time.sleep(0.1)
        assert (victim.poll() is not None) == killed
    finally:
        victim.kill()
        victim.wait()


def test_no_shell_reads_a_name(tmp_path, fake_ssh):
    """The checkout's path may hold what a shell would take apart."""
    folder = tmp_path / "it's $(touch broken) here"
    folder.mkdir()
    _, problems = looked(["good"], needs(folder))
    assert problems == [] and not list(tmp_path.rglob("broken")) and not os.path.exists("broken")
    assert re.fullmatch(r"good\n", (fake_ssh / "ssh.log").read_text())
