"""Signals that ask a run to stop, to a rank or to keep_alive, and launchers that die: a committed save, a resume."""

import os
import signal
import sys
import time

from tape_ds import run_folder
from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.kills import go_on, kill_at, random_step, setting_of
from tests.processes import ROOT

STOP_SECONDS = 30
"""From a signal to the job's end."""
TARGETS = ("rank 0", "rank 1", "keep_alive", "all ranks")
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")


def _stop(attempt: Attempt) -> None:
    draw, setting = attempt.draw, setting_of(attempt.number * 10)
    original = jobs.reference(attempt.workspace, setting)
    output = attempt.folder / "run"
    target = TARGETS[attempt.number % len(TARGETS)]
    name = SIGNALS[attempt.number // len(TARGETS) % len(SIGNALS)]
    step, delay = random_step(draw), draw.uniform(0, 0.3)
    attempt.what = f"{setting.name}: {name} to {target} {delay:.2f} s after step {step}"
    before = (
        [sys.executable, str(ROOT / "launchers" / "keep_alive.py")]
        if target == "keep_alive"
        else []
    )
    with jobs.start(attempt.workspace, setting, output, before=before) as launch:
        jobs.wait_for_step(launch, output, step)
        time.sleep(delay)
        ranks = {f"rank {rank}": process.pid for rank, process in launch.ranks().items()}
        reached = runs.last_step(output)
        groups = {"keep_alive": [launch.process.pid], "all ranks": list(ranks.values())}
        begin = time.monotonic()
        for pid in groups.get(target) or [ranks[target]]:
            os.kill(pid, getattr(signal, name))
        code = launch.wait(STOP_SECONDS + 5)
        launch.gone()
        seconds = time.monotonic() - begin
        attempt.seen.append(f"exit {code}, all gone {seconds:.1f} s after the signal")
        assert seconds <= STOP_SECONDS, f"it took {seconds:.1f} s"
        assert "Traceback" not in launch.printed, launch.printed[-4000:]
    if run_folder.read_marker(output / run_folder.FINISHED) is None:
        assert code == 0, f"it ended with {code}"
        newest = runs.newest(output)
        assert newest >= reached, (
            f"step {reached} was reached before the signal, and checkpoint-{newest} is the newest"
        )
        assert newest == runs.last_step(output), (
            f"checkpoint-{newest} at step {runs.last_step(output)}"
        )
        stopped = run_folder.read_marker(output / run_folder.STOPPED)
        assert stopped is not None and stopped["step"] == newest, f"the marker is {stopped}"
    go_on(attempt, setting, output, original)


def _lose_the_launcher(attempt: Attempt) -> None:
    setting, output = setting_of(attempt.number * 10), attempt.folder / "run"
    original = jobs.reference(attempt.workspace, setting)
    victim = ("the runner", "launch.py")[attempt.number % 2]
    # early: ranks look once a second
    kill_at(attempt, setting, output, victim, step=attempt.draw.randint(1, 3))
    if run_folder.read_marker(output / run_folder.FINISHED) is None:
        newest = runs.newest(output)
        assert newest == runs.last_step(output), (
            f"checkpoint-{newest} at step {runs.last_step(output)}"
        )
    go_on(attempt, setting, output, original)


SIGTERM = Campaign(
    "sigterm",
    count=10,
    daily=0,  # tests/integration/test_keep_alive.py stops a run in this way
    means="SIGTERM, SIGUSR1 or SIGINT to one rank, to all, or to keep_alive at a random moment, loader workers "
    "running: a checkpoint of the very step is committed and all processes are gone within 30 s, exit code 0; the "
    "resume is exact.",
    execute=_stop,
)
LAUNCHER = Campaign(
    "launcher",
    count=5,
    daily=0,  # tests/resilience/test_stopping.py kills a launcher
    means="SIGKILL to the deepspeed runner or to its launch.py: the ranks commit and exit by themselves, no process "
    "is left after 30 s, the resume is exact.",
    execute=_lose_the_launcher,
)
