"""A command on several machines is looked at whole, and then starts as it was typed."""

import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tape_ds.errors import UserError
from tape_ds.training.cluster import starting
from tape_ds.training.cluster.hostfile import Host

HOSTS = [Host("node1", 8, 1), Host("node2", 4, 2)]


def command(*options, arguments=("--recipe", "x")):
    return starting.read(["deepspeed", "--hostfile", "hosts", *options, "train.py", *arguments])


def problems_of(call):
    with pytest.raises(UserError) as caught:
        call()
    return {problem.field: f"{problem.wrong}; {problem.remedy}" for problem in caught.value.problems}


@pytest.mark.parametrize("program", [["deepspeed"], ["/x/bin/ds"], [sys.executable, "-m", "deepspeed.launcher.runner"]])
def test_a_command_is_taken_apart_by_deepspeeds_own_parser(program):
    found = starting.read(
        [*program, "--hostfile", "h", "--master_port", "7", "train.py", "--seed", "1", "--hostfile", "x"]
    )
    assert found.before == program and found.options == ["--hostfile", "h", "--master_port", "7"]
    assert (found.script, found.arguments) == ("train.py", ["--seed", "1", "--hostfile", "x"])
    assert found.line() == [*program, *found.options, "train.py", *found.arguments]
    assert found.line(["--more", "1"])[: len(program) + 2] == [*program, "--more", "1"]


def test_another_program_is_refused():
    assert "does not run deepspeed" in problems_of(lambda: starting.read(["torchrun", "train.py"]))["command"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"node1": 8, "node2": 4}),
        (["--num_nodes", "1"], {"node1": 8}),
        (["--num_gpus", "2"], {"node1": 2, "node2": 2}),
        (["--include", "node2:0,3"], {"node2": 2}),
        (["--exclude", "node1"], {"node2": 4}),
    ],
)
def test_machines_are_chosen_as_deepspeed_does(options, expected):
    assert {host.name: host.slots for host in starting.chosen(command(*options), HOSTS)} == expected


@pytest.mark.parametrize(
    ("options", "field", "wrong"),
    [
        (["--include", "node3"], "--include", "'node3' not found"),
        (["--include", "node2:7"], "--include", "No slot '7'"),
        (["--include", "node2:x"], "--include", "invalid literal"),
        (["--exclude", "node1@node2"], "--exclude", "no machine is left"),
        (["--include", "node1", "--exclude", "node2"], "--include --exclude", "mutually exclusive"),
        (["--include", "node1", "--num_nodes", "1"], "--include", "not together"),
        (["--num_nodes", "3"], "--num_nodes", "hosts has 2"),
        (["--num_gpus", "6"], "--num_gpus", "node2 has 4 (hosts:2)"),
    ],
)
def test_machines_that_cannot_be_had_are_said(options, field, wrong):
    assert wrong in problems_of(lambda: starting.chosen(command(*options), HOSTS))[field]


def test_a_user_before_a_machine_cannot_be_included():
    said = problems_of(lambda: starting.chosen(command("--include", "me@node1"), [Host("me@node1", 8, 1)]))
    assert "users go into ~/.ssh/config" in said["--include"]


WORDS = ["--a={'b': 1}", '{"a":1}', "it's", "$HOME", "a $HOME `date` b", 'say "so" \\ now', "*", "100%", "%h %n", ";ls"]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_arrives_behind_deepspeed_pdsh_and_a_shell(word):
    from deepspeed.launcher.multinode_runner import PDSHRunner

    runner = PDSHRunner.__new__(PDSHRunner)
    runner.args = type("Args", (), {"user_args": [starting.for_pdsh(word)]})
    (through,) = runner.parse_user_args()
    through = through.replace("%%", "%")  # pdsh
    shown = subprocess.run(["sh", "-c", f"printf %s {through}"], capture_output=True, text=True, check=True)
    assert shown.stdout == word


@pytest.mark.parametrize("script", ["it's a script.py", "100%.py", "train.py"])
def test_a_script_arrives_though_deepspeed_quotes_it_not(script):
    given = starting.read(["deepspeed", "--hostfile", "hosts", script, "a b"])
    (through,) = [word.replace("%%", "%") for word in given.line(through_shells=True)[3:-1]]
    shown = subprocess.run(["sh", "-c", f"printf %s {through}"], capture_output=True, text=True, check=True)
    assert shown.stdout == script


@pytest.fixture
def folder(fake_ssh, tmp_path, monkeypatch):
    """Where the command is typed: ``train.py`` and ``hosts`` with two machines that let in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts").write_text("good1 slots=2\ngood2 slots=2\n")
    return tmp_path


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


def ready(*options, forward=(), said=None):
    given = command("--master_port", free_port(), *options, arguments=("--text", "it's $HOME"))
    return starting.prepare(given, forward, 5, (said if said is not None else []).append)


def test_a_command_that_is_ready_asks_ssh_no_more(folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_never_on_a_command_line")
    said = []
    found = ready("--master_addr", "127.0.0.1", said=said)
    try:
        line = shlex.join(found.line)
        assert "--no_ssh_check" in found.line and "--force_multi" in found.line
        assert "hf_never" not in line and found.line[-1] == starting.for_pdsh("it's $HOME")
        place = found.line[found.line.index("--venv_script") + 1]
        assert place.endswith(".%n") and "hf_never" in Path(place.replace("%n", "1")).read_text()
        assert (
            "2 machines answer; 4 ranks; forwarded: " in said[-1]
            and "HF_TOKEN" in said[-1]
            and "hf_never" not in said[-1]
        )
    finally:
        found.scripts.remove()


def test_the_first_machines_address_is_asked_for(folder):
    found = ready()
    found.scripts.remove()
    own = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    if not own:
        pytest.skip("this machine has no address")
    assert found.line[found.line.index("--master_addr") + 1] == own[0]


def test_all_that_is_in_the_way_is_said_before_anything_starts(folder):
    (folder / "hosts").write_text("good1 slots=2\nlocked slots=2\nnowhere slots=2\n")
    found = problems_of(ready)
    assert list(found) == ["hosts:2", "hosts:3"] and not (folder / "fakes" / "pdsh.log").exists()


@pytest.mark.parametrize(
    ("options", "field", "wrong"),
    [
        (["--launcher", "openmpi"], "--launcher", "for pdsh alone"),
        (["--ssh_port", "70000"], "--ssh_port", "no port"),
        (["--no_ssh"], "--node_rank", "not the number of one of the 2"),
        (["--no_ssh"], "--master_addr", "--master_addr good1"),
        (
            ["--no_ssh", "--node_rank", "0", "--master_addr", "no.such.invalid"],
            "--master_addr",
            "no machine of this name",
        ),
    ],
)
def test_options_that_cannot_work_are_said(options, field, wrong, folder):
    assert wrong in problems_of(lambda: ready(*options))[field]


def test_what_can_be_seen_from_here_is_said_at_once(folder):
    (folder / "hosts").write_text("good1\n")
    found = problems_of(lambda: ready("--ssh_port", "0", "--launcher", "openmpi", forward=["NOT_SET"]))
    assert list(found) == ["hosts:1", "--forward", "--ssh_port", "--launcher"]


def test_a_folder_that_deepspeeds_command_would_lose_is_said(folder, monkeypatch):
    there = folder / "my runs"
    there.mkdir()
    (there / "hosts").write_text("good1 slots=1\ngood2 slots=1\n")
    (there / "train.py").touch()
    monkeypatch.chdir(there)
    assert "without quotes" in problems_of(ready)["folder"] and not (folder / "fakes" / "ssh.log").exists()
    assert ready("--no_ssh", "--node_rank", "0", "--master_addr", "127.0.0.1").scripts is None


def test_what_deepspeed_would_show_of_the_forwarded_is_kept_from_it(folder, monkeypatch):
    """It writes every variable that begins so into the command that it logs."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "never on a command line")
    monkeypatch.setenv("PYTHONPATH", "/stays")
    found = ready("--master_addr", "127.0.0.1")
    try:
        placed = Path(found.scripts.pattern.replace("%n", "0")).read_text()
        assert "MLFLOW_TRACKING_TOKEN" in placed and "MLFLOW_TRACKING_TOKEN" not in found.environment
        assert found.environment["PYTHONPATH"] == "/stays"
    finally:
        found.scripts.remove()


def test_without_pdsh_the_two_ways_are_named(folder, monkeypatch):
    monkeypatch.setattr(starting.shutil, "which", lambda name: None)
    assert "--no_ssh" in problems_of(ready)["pdsh"]


def test_a_port_that_is_taken_here_is_said_on_the_first_machine(folder):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        alone = ("--no_ssh", "--master_addr", "127.0.0.1", "--master_port", port, "--node_rank")
        assert "taken on this machine" in problems_of(lambda: ready(*alone, "0"))["--master_port"]
        assert ready(*alone, "1").scripts is None


def test_one_machine_that_is_this_one_needs_no_ssh(folder):
    (folder / "hosts").write_text("localhost slots=2\n")
    found = ready()
    assert found.scripts is None and "--force_multi" not in found.line and not (folder / "fakes" / "ssh.log").exists()


def test_a_command_gives_its_code_and_scripts_go(folder):
    removed = []
    scripts = type("Scripts", (), {"remove": lambda self: removed.append(True)})()
    assert starting.Ready([sys.executable, "-c", "raise SystemExit(3)"], scripts).run() == 3 and removed == [True]
    with pytest.raises(UserError, match="cannot be started"):
        starting.Ready(["/no/such/program"], scripts).run()
    assert removed == [True, True]


# A process of its own that does not wait for all that the package imports.
LIGHT = f"""
import sys, types
sys.modules["tape_ds"] = types.ModuleType("tape_ds")
sys.modules["tape_ds"].__path__ = [{str(Path(starting.__file__).parents[2])!r}]
"""
PASSED_ON = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: sys.exit(7))
print("up", flush=True)
time.sleep(20)
"""


def test_a_signal_reaches_the_command_as_the_one_it_hands_on():
    line = [sys.executable, "-c", PASSED_ON]
    code = f"{LIGHT}\nfrom tape_ds.training.cluster.starting import Ready\nsys.exit(Ready({line!r}).run())"
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGUSR1)
        assert running.wait(20) == 7
    finally:
        running.kill()
        running.wait()
