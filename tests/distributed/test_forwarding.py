"""Variables reach a machine whole, by a script that nobody else reads; the command starts as it was typed."""

import contextlib
import shlex
import signal
import stat
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import psutil
import pytest

from tape_ds.distributed import forwarding, ssh
from tape_ds.errors import UserError
from tape_ds.resilience import exit_code_file

AWKWARD = 'it\'s "quoted" $HOME `date` \\ two\nlines %h'


def test_what_training_reads_is_forwarded_and_the_rest_is_not():
    kept = {"WANDB_API_KEY": "k", "HF_TOKEN": "t", "HF_HOME": "/x", "OMP_NUM_THREADS": "4", "TAPE_DS_ATTENTION": "sdpa"}
    kept |= {"TOKENIZERS_PARALLELISM": "false", "TORCHINDUCTOR_CACHE_DIR": "/c", "NCCL_DEBUG": "INFO", "no_proxy": "p"}
    kept |= {"HTTPS_PROXY": "p", "SSL_CERT_DIR": "/s", "REQUESTS_CA_BUNDLE": "/b", "LD_LIBRARY_PATH": "/l"}
    left = {
        "HOME": "/root",
        "SSH_AUTH_SOCK": "/s",
        "CUDA_VISIBLE_DEVICES": "0",
        "DS_ENV_FILE": "f",
        exit_code_file.FILE: "v",
    }
    assert forwarding.variables({**kept, **left, "HF_bad-name": "x"}) == kept


def test_more_can_be_asked_for_by_name():
    assert forwarding.variables({"MINE": "1", "OTHER": "2"}, ["MINE"]) == {"MINE": "1"}
    with pytest.raises(UserError, match="--forward = 'MINE': there is no such variable"):
        forwarding.variables({}, ["MINE"])


def test_a_script_sets_values_as_they_are_and_removes_itself(tmp_path):
    own, first = tmp_path / "own.sh", tmp_path / "venv.sh"
    first.write_text("export FROM_VENV=yes HF_HOME=/other\n")
    own.write_text(forwarding.script({"HF_HOME": "/mine", "WANDB_NOTES": AWKWARD}, str(own), str(first)))
    with sourced(own, "env -0") as shown:
        found = dict(entry.split("=", 1) for entry in shown.stdout.read().split("\0") if entry)
    assert found["WANDB_NOTES"] == AWKWARD and found["HF_HOME"] == "/mine" and found["FROM_VENV"] == "yes"
    assert found["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin" and not own.exists()


@contextlib.contextmanager
def sourced(script, command):
    """A shell that reads a script and goes on with a command, as DeepSpeed's launch on a machine does."""
    pipe = subprocess.PIPE
    line = ["bash", "-c", f"source {script}; {command}"]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env={"PATH": "/usr/bin:/bin"}) as running:
        yield running


LAUNCH = "bash -c 'sleep 600 & echo $!; wait' deepspeed.launcher.launch"


@pytest.mark.parametrize("command", [f"exec {LAUNCH}", f"{LAUNCH}; true"], ids=["the shell itself", "below the shell"])
def test_a_launch_does_not_outlive_its_input(command, tmp_path):
    """pdsh's connections outlive pdsh: a job would train on when everything that started it was killed. Its ranks see
    for themselves that their launcher died: they have something to commit."""
    own = tmp_path / "own.sh"
    own.write_text(forwarding.script({}, str(own)))
    with sourced(own, command) as running:
        rank = psutil.Process(int(running.stdout.readline()))
        launch = rank.parent()
        assert running.poll() is None and launch is not None
        running.stdin.close()
        assert running.wait() == -signal.SIGKILL
        psutil.wait_procs([launch])
        time.sleep(0.2)
        assert rank.is_running()
        rank.kill()


def test_each_machine_has_a_script_that_is_this_users_alone(fake_ssh):
    with forwarding.placed(["good1", "good2"], None, {"HF_TOKEN": "secret"}) as pattern:
        paths = [Path(pattern.replace("%n", number)) for number in "01"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
        assert all("export HF_TOKEN=secret" in path.read_text() for path in paths)
        assert pattern.startswith("/dev/shm/") and "secret" not in fake_ssh.read_text()
    assert not any(path.exists() for path in paths)


def scripts():
    return set(Path("/dev/shm").glob("tape_ds-*"))


def test_a_machine_that_takes_none_is_named_and_the_others_are_cleared(fake_ssh):
    before = scripts()
    with pytest.raises(UserError, match=r"--hostfile = 'closed': .* Connection refused"):
        forwarding.placed(["good1", "closed"], None, {}).__enter__()
    assert scripts() <= before


def test_nothing_stays_where_somebody_interrupts(fake_ssh, monkeypatch):
    before, tell_each = scripts(), ssh.tell_each

    def interrupted(commands, port):
        monkeypatch.setattr(ssh, "tell_each", tell_each)
        tell_each(commands, port)
        raise KeyboardInterrupt

    monkeypatch.setattr(ssh, "tell_each", interrupted)
    with pytest.raises(KeyboardInterrupt):
        forwarding.placed(["good1"], None, {"HF_TOKEN": "secret"}).__enter__()
    assert scripts() <= before


def test_a_file_of_somebody_else_is_not_written_into(fake_ssh, monkeypatch):
    monkeypatch.setattr(forwarding.secrets, "token_hex", lambda size: "theirs")
    theirs = Path("/dev/shm/tape_ds-theirs.0")
    theirs.write_text("")
    try:
        with pytest.raises(UserError, match="File exists"):
            forwarding.placed(["good"], None, {"HF_TOKEN": "secret"}).__enter__()
    finally:
        theirs.unlink(missing_ok=True)


WORDS = ["--a={'b': 1}", '{"a":1}', "it's", "$HOME", "a $HOME `date` b", 'say "so" \\ now', "*", "100%", "%h %n", ";ls"]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_arrives_behind_deepspeed_pdsh_and_a_shell(word):
    from deepspeed.launcher.multinode_runner import PDSHRunner

    runner = PDSHRunner.__new__(PDSHRunner)
    runner.args = Namespace(user_args=[forwarding.for_pdsh(word)])
    (through,) = runner.parse_user_args()
    through = through.replace("%%", "%")  # pdsh
    shown = subprocess.run(["sh", "-c", f"printf %s {through}"], capture_output=True, text=True, check=True)
    assert shown.stdout == word


@pytest.fixture
def started(fake_ssh, tmp_path, monkeypatch):
    """Has a command start nothing; lists the lines and environments that would have been."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("good1 slots=2\ngood2 slots=2\n")
    found = []
    monkeypatch.setattr(forwarding, "_see_through", lambda line, environment: found.append((line, environment)) or 0)
    return found


def start(*options, forward=(), arguments=()):
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", "hosts", *options]
    return forwarding.start([*command, "it's a.py", *arguments], forward)


def test_a_command_starts_as_it_was_typed_and_shows_no_secret(started, capsys, monkeypatch):
    """DeepSpeed would write every variable that begins with MLFLOW into the command that it logs."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "never_said")
    monkeypatch.setenv("PYTHONPATH", "/stays")
    assert start("--master_port", "7", arguments=["--hostfile", "$x"]) == 0
    ((line, environment),) = started
    path = line[line.index("--venv_script") + 1]
    assert line[3:] == [
        *["--hostfile", "hosts", "--master_port", "7", "--venv_script", path, "--force_multi"],
        *[shlex.quote("it's a.py"), "--hostfile", "'$x'"],
    ]
    assert "MLFLOW_TRACKING_TOKEN" not in environment and environment["PYTHONPATH"] == "/stays"
    said = capsys.readouterr().out
    assert "2 machines answer" in said and "MLFLOW_TRACKING_TOKEN" in said and "never_said" not in said


@pytest.mark.parametrize(
    ("options", "machines"),
    [([], 2), (["--num_nodes", "1"], 1), (["--include", "good2:0"], 1), (["--exclude", "good1"], 1)],
)
def test_machines_are_chosen_as_deepspeed_does(options, machines, started, capsys):
    start(*options)
    assert f"on_hosts: {machines} machines answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--include", "node3"], "'node3' not found"),
        (["--no_ssh"], "by pdsh alone"),
        (["--launcher", "openmpi"], "by pdsh alone"),
        (["--hostfile", "no_hosts"], "no such file"),
    ],
)
def test_what_cannot_be_started_is_said(options, said, started):
    with pytest.raises(UserError, match=said):
        start(*options)
    assert not started


@pytest.mark.parametrize(
    ("command", "said"),
    [(["torchrun", "train.py"], "does not run deepspeed"), (["/no/deepspeed", "train.py"], "no program /no/deepspeed")],
)
def test_another_program_is_refused(command, said):
    with pytest.raises(UserError, match=said):
        forwarding.start(command, [])


PASSED_ON = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: sys.exit(7))
time.sleep(1)
print("up", flush=True)
time.sleep(600)
"""


def test_a_signal_reaches_the_command_as_the_one_it_hands_on():
    line = [sys.executable, "-c", PASSED_ON]
    code = f"import sys; from tape_ds.distributed import forwarding as f; sys.exit(f._see_through({line!r}, {{}}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGUSR1)
        assert running.wait() == 7
