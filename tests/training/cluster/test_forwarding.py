"""Variables reach a machine whole, by a script that nobody else reads and that is gone when it has been read."""

import contextlib
import signal
import stat
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tape_ds.errors import UserError
from tape_ds.training import verdict
from tape_ds.training.cluster import forwarding, reach
from tape_ds.training.cluster.hostfile import Host

AWKWARD = 'it\'s "quoted" $HOME `date` \\ two\nlines %h'


def test_what_training_reads_is_forwarded_and_the_rest_is_not():
    kept = {"WANDB_API_KEY": "k", "HF_TOKEN": "t", "HF_HOME": "/x", "OMP_NUM_THREADS": "4", "TAPE_DS_ATTENTION": "sdpa"}
    kept |= {"TOKENIZERS_PARALLELISM": "false", "TRITON_CACHE_DIR": "/c", "NCCL_DEBUG": "INFO", "https_proxy": "p"}
    left = {"HOME": "/root", "SSH_AUTH_SOCK": "/s", "CUDA_VISIBLE_DEVICES": "0", "DS_ENV_FILE": "f", verdict.FILE: "v"}
    assert forwarding.chosen({**kept, **left, "HF_bad-name": "x"}) == kept


def test_more_can_be_asked_for_by_name():
    assert forwarding.chosen({"MINE": "1", "OTHER": "2"}, ["MINE"]) == {"MINE": "1"}
    with pytest.raises(UserError, match="--forward = 'MINE': there is no such variable"):
        forwarding.chosen({}, ["MINE"])


def test_a_script_sets_values_as_they_are_and_removes_itself(tmp_path):
    own, first = tmp_path / "own.sh", tmp_path / "venv.sh"
    first.write_text("export FROM_VENV=yes HF_HOME=/other\n")
    own.write_text(
        forwarding.script({"HF_HOME": "/mine", "WANDB_NOTES": AWKWARD}, Path("/the bin"), str(own), str(first))
    )
    with sourced(own, "env -0") as shown:
        found = dict(entry.split("=", 1) for entry in shown.stdout.read().split("\0") if entry)
    assert found["WANDB_NOTES"] == AWKWARD and found["HF_HOME"] == "/mine" and found["FROM_VENV"] == "yes"
    assert found["PATH"] == "/the bin:/usr/bin:/bin" and not own.exists()


@contextlib.contextmanager
def sourced(script, command):
    """A shell that reads a script and goes on with a command, as DeepSpeed's launch on a machine does."""
    pipe = subprocess.PIPE
    line = ["bash", "-c", f"source {script}; {command}"]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env={"PATH": "/usr/bin:/bin"}) as running:
        yield running


LAUNCH = "bash -c 'sleep 30 & echo $!; wait' deepspeed.launcher.launch"


@pytest.mark.parametrize("command", [f"exec {LAUNCH}", f"{LAUNCH}; true"], ids=["the shell itself", "below the shell"])
def test_a_launch_does_not_outlive_its_input(command, tmp_path):
    """pdsh's connections outlive pdsh: a job would train on when everything that started it was killed. Its ranks see
    for themselves that their launcher died: they have something to commit."""
    own = tmp_path / "own.sh"
    own.write_text(forwarding.script({}, Path("/bin"), str(own)))
    with sourced(own, command) as running:
        rank = psutil.Process(int(running.stdout.readline()))
        launch = rank.parent()
        assert running.poll() is None and launch is not None
        running.stdin.close()
        assert running.wait(10) == -signal.SIGKILL
        assert psutil.wait_procs([launch], timeout=10)[1] == []
        time.sleep(0.2)
        assert rank.is_running()
        rank.kill()


def answers(*names):
    return [reach.Answer(Host(name, 1, line), {"hostname": name}) for line, name in enumerate(names, 1)]


def test_each_machine_gets_a_script_that_is_this_users_alone(fake_ssh):
    scripts = forwarding.Scripts(answers("good1", "good2"), None, 5)
    placed = [Path(scripts.pattern.replace("%n", number)) for number in "01"]
    try:
        scripts.place({"HF_TOKEN": "secret"}, Path("/bin"))
        assert [stat.S_IMODE(path.stat().st_mode) for path in placed] == [0o600, 0o600]
        assert all("export HF_TOKEN=secret" in path.read_text() for path in placed)
    finally:
        scripts.remove()
    assert not any(path.exists() for path in placed)


def test_it_lies_in_memory_where_all_machines_can(fake_ssh):
    with_memory = [reach.Answer(Host("good1", 1, 1), {"hostname": "a", "memory": "yes"})]
    assert forwarding.Scripts(with_memory, None, 5).pattern.startswith("/dev/shm/")
    assert forwarding.Scripts([*with_memory, *answers("good2")], None, 5).pattern.startswith("/tmp/")


def test_a_machine_that_takes_none_is_named_and_the_others_are_cleared(fake_ssh):
    scripts = forwarding.Scripts(answers("good1", "closed"), None, 5)
    with pytest.raises(UserError, match="environment = 'closed'"):
        scripts.place({}, Path("/bin"))
    assert not Path(scripts.pattern.replace("%n", "0")).exists()


def test_nothing_stays_where_somebody_interrupts(fake_ssh, monkeypatch):
    of_each = reach.of_each

    def interrupted(hosts, work):
        monkeypatch.setattr(reach, "of_each", of_each)
        assert work(hosts[0]) is None
        raise KeyboardInterrupt

    scripts = forwarding.Scripts(answers("good1", "good2"), None, 5)
    monkeypatch.setattr(reach, "of_each", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scripts.place({"HF_TOKEN": "secret"}, Path("/bin"))
    assert not Path(scripts.pattern.replace("%n", "0")).exists()


def test_a_file_of_somebody_else_is_not_written_into(fake_ssh):
    scripts = forwarding.Scripts(answers("good"), None, 5)
    theirs = Path(scripts.pattern.replace("%n", "0"))
    theirs.write_text("")
    try:
        with pytest.raises(UserError, match="cannot be written"):
            scripts.place({"HF_TOKEN": "secret"}, Path("/bin"))
    finally:
        theirs.unlink(missing_ok=True)
