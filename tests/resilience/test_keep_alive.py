"""What becomes of a run decides whether it is started again, and nothing else does: least of all an exit code.

The command is a small program that behaves like a launcher with ranks: it takes locks, writes checkpoints and markers,
dies, hangs, or leaves ranks behind.
"""

import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import psutil
import pytest

from tape_ds import run_folder
from tape_ds.errors import UserError
from tape_ds.resilience import keep_alive, run_lock
from tape_ds.resilience.keep_alive import KeepAlive, LaunchSpec, Patience
from tape_ds.resilience.stopping import StopRequest

ROOT = Path(__file__).resolve().parents[2]

RANK = f'''
"""Stands for a launcher and its ranks: does what the file "plan" says for the n-th start."""
import os, signal, subprocess, sys, time, types
sys.modules["tape_ds"] = types.ModuleType("tape_ds")
sys.modules["tape_ds"].__path__ = [{str(ROOT / "tape_ds")!r}]
from pathlib import Path
from tape_ds import run_folder
from tape_ds.resilience import run_lock
from tape_ds.checkpoint import Manifest

output = Path(sys.argv[1])
asked = []
signal.signal(signal.SIGTERM, lambda *arguments: asked.append("SIGTERM"))

def lock(rank=0):
    run_lock.RunLock(output, rank).acquire()

def save(step):
    folder = output / f"checkpoint-{{step}}"
    folder.mkdir(parents=True, exist_ok=True)
    Manifest(step=step, processes=1, stage=None, files={{}}, identity={{}}).write(folder)

def finish():
    run_folder.mark(output, run_folder.FINISHED, 40)

def stop(step, reason="SIGTERM"):
    run_folder.mark(output, run_folder.STOPPED, step, reason=reason)

def wait(seconds=120, until=lambda: asked):
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.02)

def orphan(seconds, *more):
    """Leave a rank that lives for so long after this process."""
    pid = os.fork()
    if pid == 0:
        above = os.getppid()
        lock()
        (output / "orphan").write_text(str(os.getpid()))
        wait(until=lambda: os.getppid() != above)
        time.sleep(seconds)
        for each in more:
            each()
        os._exit(0)
    wait(until=(output / "orphan").exists)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

count = len(list(output.glob("start-*")))
(output / f"start-{{count}}").write_text(" ".join(sys.argv[2:]))
lines = (output / "plan").read_text().splitlines()
exec(lines[min(count, len(lines) - 1)])
'''


class WatchedRun(KeepAlive):
    """A run kept alive whose lines are kept as well."""

    def __init__(self, folder, plan, **patience):
        self.output = folder / "run"
        self.output.mkdir(exist_ok=True)
        (self.output / "plan").write_text("\n".join(plan))
        (folder / "pretrain_c4.py").write_text(RANK)
        command = [sys.executable, str(folder / "pretrain_c4.py"), str(self.output)]
        kept = LaunchSpec([*command, "first"], [*command, "again"], self.output)
        self.lines: list[str] = []
        super().__init__(
            kept, Patience(**({"backoff": 0.01} | patience)), StopRequest(), self.lines.append
        )

    def starts(self):
        """The words in which the starts differ."""
        return [path.read_text() for path in sorted(self.output.glob("start-*"))]


def nobody_lives(output):
    return run_lock.living(output) == []


@pytest.mark.parametrize(
    ("plan", "code", "starts", "said"),
    [
        (["finish()"], 0, 1, "finished"),
        (["finish(); sys.exit(7)"], 0, 1, "finished"),
        (
            ["killed()", "finish()"],
            0,
            2,
            "ended by SIGKILL, and the run is not finished; restarting in 0.01 s",
        ),
        (["sys.exit(4)", "finish()"], 0, 2, "a rank was stuck"),
        (["sys.exit(2)", "finish()"], 2, 1, "it would fail again"),
        (["sys.exit(3)", "finish()"], 3, 1, "a guard stopped the run"),
        (
            ["save(5); stop(5)", "finish()"],
            0,
            1,
            "stays stopped; the same command continues from checkpoint-5",
        ),
        (
            ["save(5); stop(5); sys.exit(1)", "finish()"],
            0,
            1,
            "was stopped (SIGTERM) and stays stopped",
        ),
        (
            ["save(5); stop(8); sys.exit(1)", "finish()"],
            1,
            1,
            "its last checkpoint is not committed",
        ),
        # ranks that outlive their launcher commit or finish; a new start before that would meet their locks
        (
            [
                "orphan(0.5, lambda: save(7)); killed()",
                "assert not run_lock.living(output); finish()",
            ],
            0,
            2,
            "-7",
        ),
        (["orphan(0.2, finish); killed()"], 0, 1, "finished"),
        # only checkpoints renew patience, also one in the place of a damaged one
        (["sys.exit(9)"], 9, 2, "1 restarts brought no newer checkpoint: giving up"),
        (["killed()"], 1, 2, "1 restarts brought no newer checkpoint: giving up"),
        (
            ["save(9); killed()", "killed()", "save(9); killed()", "killed()", "finish()"],
            0,
            5,
            "finished",
        ),
    ],
)
def test_what_becomes_of_a_run_decides(plan, code, starts, said, tmp_path):
    watched = WatchedRun(tmp_path, plan, restarts=1)
    assert watched.run() == code
    assert watched.starts() == ["first", *["again"] * 4][:starts]
    assert any(said in line for line in watched.lines), watched.lines


@pytest.mark.parametrize(("left", "end", "code"), [(3, 1, 3), (2, 9, 9)])
def test_rank_0_knows_better_than_a_launcher_that_always_fails_alike(
    left, end, code, tmp_path, monkeypatch
):
    """torchrun ends with 1 whatever its ranks ended with."""
    monkeypatch.delenv("RANK", raising=False)
    watched = WatchedRun(
        tmp_path,
        [f"from tape_ds import exit_codes; exit_codes.leave({left}); sys.exit({end})"],
        restarts=0,
    )
    assert watched.run() == code and watched.starts() == ["first"]


def test_a_restart_waits_for_ranks_on_other_machines(tmp_path, monkeypatch):
    """They cannot be killed from here, and a start of the same run would meet their locks and be refused."""
    watched = WatchedRun(tmp_path, ["killed()", "finish()"], grace=1)
    holders = [run_lock.Holder(1, 71, "far", "now")]
    monkeypatch.setattr(keep_alive.run_lock, "refuse", lambda output: [])
    monkeypatch.setattr(keep_alive.run_lock, "living", lambda output: list(holders))

    def say(line):
        watched.lines.append(line)
        if line == "waiting for rank 1: process 71 on far, since now":
            assert watched.starts() == ["first"]
            holders.clear()

    watched.say = say
    assert watched.run() == 0 and watched.starts() == ["first", "again"] and not holders


def test_markers_of_before_do_not_count(tmp_path):
    """A run that was finished or stopped once, and now dies before it could take those words back."""
    watched = WatchedRun(tmp_path, ["killed()", "finish()"])
    run_folder.mark(watched.output, run_folder.FINISHED, 10)
    run_folder.mark(watched.output, run_folder.STOPPED, 0, reason="SIGTERM")
    assert watched.run() == 0 and watched.starts() == ["first", "again"]


def test_a_run_that_is_finished_already_is_not_started_for_ever(tmp_path):
    """Its launcher finds nothing to do and leaves the marker there."""
    watched = WatchedRun(tmp_path, ["sys.exit(0)"])
    run_folder.mark(watched.output, run_folder.FINISHED, 10)
    assert watched.run() == 0 and watched.starts() == ["first"] and watched.lines == ["finished"]


def test_ranks_that_do_not_leave_are_killed(tmp_path):
    watched = WatchedRun(tmp_path, ["orphan(600); killed()", "finish()"], grace=1)
    assert watched.run() == 0
    assert (
        watched.lines[0]
        == "ranks outlived their launcher by 1 s; those on this machine were killed"
    )
    assert not psutil.pid_exists(int((watched.output / "orphan").read_text())) or nobody_lives(
        watched.output
    )


def wait_for(what, seconds=120):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


def stopped_when(watched, what):
    """Run it, and ask it to stop when ``what`` holds; returns the exit code."""

    def ask():
        wait_for(what)
        watched.request.request("SIGUSR1")

    thread = threading.Thread(target=ask)
    thread.start()
    code = watched.run()
    thread.join()
    return code


@pytest.mark.parametrize(
    ("plan", "code", "said"),
    [
        ("wait(); save(4); stop(4); sys.exit(1)", 0, "was stopped (SIGTERM) and stays stopped"),
        ("wait(); finish()", 0, "finished"),
        ("wait()", 1, "stopped without a checkpoint"),
        ("time.sleep(600)", 1, "did not stop within 1 s and were killed"),
    ],
)
def test_a_request_goes_to_the_ranks(plan, code, said, tmp_path):
    watched = WatchedRun(tmp_path, [f"lock(); (output / 'locked').touch(); {plan}"], grace=1)
    assert stopped_when(watched, (watched.output / "locked").exists) == code
    assert watched.lines[0] == "SIGUSR1: asking the ranks to commit a checkpoint and stop"
    assert (
        said in watched.lines[1] and watched.starts() == ["first"] and nobody_lives(watched.output)
    )


def test_ranks_with_nothing_to_lose_are_not_waited_for(tmp_path, monkeypatch):
    """They may be loading libraries, or wait for a rank that is gone."""
    monkeypatch.setattr(keep_alive, "STARTING_SECONDS", 0.3)
    watched = WatchedRun(tmp_path, ["(output / 'up').touch(); time.sleep(600)"])
    assert stopped_when(watched, (watched.output / "up").exists) == 0
    assert "continues from the beginning" in watched.lines[-1]


def test_only_ranks_are_asked_and_never_their_launcher(tmp_path):
    """DeepSpeed's launcher would end them one after another, 30 seconds each."""
    launcher = tmp_path / "deepspeed"
    launcher.write_text(
        "import signal, subprocess, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *arguments: open({str(tmp_path / 'watched')!r}, 'w').close())\n"
        "sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)\n"
    )
    watched = WatchedRun(
        tmp_path, ["lock(); (output / 'locked').touch(); wait(); save(4); stop(4)"]
    )
    watched.spec = LaunchSpec(
        [sys.executable, str(launcher), *watched.spec.first[1:]], watched.spec.again, watched.output
    )
    assert stopped_when(watched, (watched.output / "locked").exists) == 0
    assert not (tmp_path / "watched").exists()


def test_a_second_interrupt_kills(tmp_path, monkeypatch):
    watched = WatchedRun(tmp_path, ["lock(); (output / 'locked').touch(); time.sleep(600)"])
    monkeypatch.setattr(keep_alive._Attempt, "end", mock.Mock(side_effect=KeyboardInterrupt))
    assert stopped_when(watched, (watched.output / "locked").exists) == 1 and nobody_lives(
        watched.output
    )


def test_a_request_while_nothing_runs(tmp_path):
    watched = WatchedRun(tmp_path, ["save(6); killed()"], backoff=600)
    assert (
        stopped_when(watched, lambda: any("restarting in" in line for line in watched.lines)) == 0
    )
    assert (
        watched.lines[-1]
        == "SIGUSR1 while nothing was running; the same command continues from checkpoint-6"
    )


@pytest.mark.parametrize(
    ("flags", "first", "again"),
    [
        ("", "--resume auto", "--resume auto"),
        ("--resume auto", "", "--resume auto"),
        ("--resume=runs/x/checkpoint-3", "", "--resume auto"),
        ("--resume-from-checkpoint x", "", "--resume_from_checkpoint auto"),
        ("--start_anew false", "--resume auto", "--resume auto"),
        ("--start_anew true --resume auto", "", "--resume auto --start_anew false"),
    ],
)
def test_what_a_start_goes_on_from(flags, first, again):
    """A start of before must not decide the ones after it: it would throw away what was trained since."""
    command = ["deepspeed", "--num_gpus", "8", "launchers/pretrain_c4.py", *flags.split()]
    kept = keep_alive.prepare(command)
    assert kept.first == [*command, *first.split()] and kept.again == [*command, *again.split()]


@pytest.mark.parametrize(
    ("begins", "starts"),
    [("", ["first", "first"]), ("run_folder.begin(output, 0, {}); ", ["first", "again"])],
)
def test_a_start_that_began_nothing_is_repeated_as_it_was(begins, starts, tmp_path):
    """Killed while it read its data, a run that was to begin anew was restarted by --resume auto: from the checkpoints
    of the earlier run, which it had not removed yet."""
    watched = WatchedRun(tmp_path, [f"{begins}killed()", "finish()"])
    watched.spec = replace(watched.spec, first_decides=True)
    assert watched.run() == 0 and watched.starts() == starts


@pytest.mark.parametrize(
    ("flags", "decides"), [("", False), ("--resume auto", False), ("--start_anew", True)]
)
def test_only_a_start_that_names_its_beginning_decides(flags, decides):
    assert (
        keep_alive.prepare(["python", "launchers/pretrain_c4.py", *flags.split()]).first_decides
        is decides
    )


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("pretrain_c4.py --output_dir here", "here"),
        ("pretrain_c4.py --output-dir ~/x --recipe RECIPE", str(Path.home() / "x")),
        ("pretrain_c4.py --recipe RECIPE", "there"),
    ],
)
def test_the_folder_of_a_run_is_known(arguments, output, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "base: tiny\noutput_dir: there\nresume_from_checkpoint: x\n"
    )
    words = arguments.replace("RECIPE", str(tmp_path / "mine.yaml")).split()
    kept = keep_alive.prepare(["python", f"launchers/{words[0]}", *words[1:]])
    assert kept.output == Path(output)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["train.py"], "no launcher in it"),
        (["-m", "tape_ds", "evaluate", "perplexity"], "no launcher in it"),
        (["launchers/pretrain_c4.py", "--dry_run"], "it would train nothing"),
    ],
)
def test_what_cannot_be_kept_alive(words, wrong):
    assert len(Patience(restarts=-1, backoff=float("nan"), grace=0.0).problems()) == 3
    with pytest.raises(UserError, match=re.escape(wrong)):
        keep_alive.prepare(["python", *words])


@pytest.mark.parametrize("program", [["/env/bin/tape-ds"], ["python", "-m", "tape_ds"]])
def test_a_command_of_tape_ds_is_kept_alive(program, tmp_path):
    """DeepSpeed's options may be anywhere in it."""
    machines = tmp_path / "machines"
    machines.write_text("node1 slots=2")
    hosts = ["--hostfile", str(machines), "--no_ssh"]
    words = ["extend", "--recipe", "demo", *hosts, "--output_dir", "here", "--num_gpus=2"]
    kept = keep_alive.prepare([*program, *words])
    assert kept.first == kept.again == [*program, *words, "--resume", "auto"]
    assert kept.output == Path("here")
    by_position = keep_alive.prepare([*program, "extend", "--gpus", "2", "demo", "--no_start_anew"])
    assert by_position.output == Path("runs/demo") and not by_position.first_decides
    # DeepSpeed would run on this machine alone
    with pytest.raises(UserError, match="hostfile = 'hosts': no such file"):
        keep_alive.prepare(["deepspeed", "--hostfile", "hosts", *program, "extend"])
