"""Signals that ask a run to stop, to a rank or to keep_alive, and launchers that die: a committed save, a resume."""

import os
import signal
import sys
import time
from pathlib import Path

from tape_ds import run_folder
from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.kills import find, go_on, kill, random_step, setting_of
from tests.faults.runs import Setting
from tests.processes import ORPHAN_SECONDS, ROOT

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
    code, reached = _interrupt(attempt, setting, output, target, getattr(signal, name), step, delay)
    if run_folder.finished(output) is None:
        assert code == 0, f"it ended with {code}"
        newest = runs.newest(output)
        assert newest >= reached, f"step {reached} was reached before the signal, and checkpoint-{newest} is the newest"
        assert newest == runs.last_step(output), f"checkpoint-{newest} at step {runs.last_step(output)}"
        stopped = run_folder.stopped(output)
        assert stopped is not None and stopped["step"] == newest, f"the folder says {stopped}"
    go_on(attempt, setting, output, original)


def _interrupt(
    attempt: Attempt, setting: Setting, output: Path, target: str, number: int, step: int, delay: float
) -> tuple[int, int]:
    """Start, signal, and wait for the end; the exit code, and the step that was reached before the signal."""
    before = [sys.executable, str(ROOT / "launchers" / "keep_alive.py")] if target == "keep_alive" else []
    with jobs.start(attempt.workspace, setting, output, before=before) as launch:
        jobs.wait_for_step(launch, output, step)
        time.sleep(delay)
        ranks = {f"rank {rank}": process.pid for rank, process in launch.ranks().items()}
        reached = runs.last_step(output)
        alone = {"keep_alive": [launch.process.pid], "all ranks": list(ranks.values())}
        begin = time.monotonic()
        for pid in alone.get(target) or [ranks[target]]:
            os.kill(pid, number)
        code = launch.wait(STOP_SECONDS + 5)
        launch.gone()
        seconds = time.monotonic() - begin
        attempt.seen.append(f"exit {code}, all gone {seconds:.1f} s after the signal")
        assert seconds <= STOP_SECONDS, f"it took {seconds:.1f} s"
        assert "Traceback" not in launch.printed, launch.printed[-4000:]
    return code, reached


def _lose_the_launcher(attempt: Attempt) -> None:
    draw, setting = attempt.draw, setting_of(attempt.number * 10)
    original = jobs.reference(attempt.workspace, setting)
    output = attempt.folder / "run"
    victim = ("the runner", "launch.py")[attempt.number % 2]
    step = draw.randint(1, 3)  # early: ranks look once a second
    attempt.what = f"{setting.name}: SIGKILL to {victim} after step {step}"
    with jobs.start(attempt.workspace, setting, output) as launch:
        jobs.wait_for_step(launch, output, step)
        process = find(launch, victim)
        assert process is not None, launch.printed[-2000:]
        kill(process)
        launch.wait()
        attempt.seen.append(f"no process {launch.gone(ORPHAN_SECONDS):.1f} s later")
        assert "Traceback" not in launch.printed, launch.printed[-4000:]
    if run_folder.finished(output) is None:
        newest = runs.newest(output)
        assert newest == runs.last_step(output), f"checkpoint-{newest} at step {runs.last_step(output)}"
    go_on(attempt, setting, output, original)


SIGTERM = Campaign(
    "sigterm",
    count=10,
    daily=0,  # tests/integration/test_keep_alive.py stops a run so
    means="SIGTERM, SIGUSR1 or SIGINT to one rank, to all, or to keep_alive at a random moment, loader workers "
    "running: a checkpoint of the very step is committed and all processes are gone within 30 s, exit code 0; the "
    "resume is exact.",
    execute=_stop,
)
LAUNCHER = Campaign(
    "launcher",
    count=5,
    daily=1,
    means="SIGKILL to the deepspeed runner or to its launch.py: the ranks commit and exit by themselves, no process "
    "is left after 30 s, the resume is exact.",
    execute=_lose_the_launcher,
)
