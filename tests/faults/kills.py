"""SIGKILL for a rank or for a launcher, at a random moment or at a chosen call within a save, and a resume."""

import contextlib
import random
import time
from pathlib import Path

import psutil

from tape_ds import run_folder
from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.runs import SAVE_STEPS, SETTINGS, STEPS, Setting
from tests.processes import Launch

RACING = "os.mkdir"
"""Which rank makes a folder that all of them need is not decided, and so is how often one tries."""


def setting_of(number: int) -> Setting:
    """The settings take turns, so that a full campaign meets each kind of kill with each of them."""
    if number % 10 == 7:
        return SETTINGS["packed"]
    return SETTINGS["streamed" if number // 10 % 2 == 0 else "pose"]


def _execute(attempt: Attempt) -> None:
    setting, kind, draw = setting_of(attempt.number), attempt.number % 3, attempt.draw
    original = jobs.reference(attempt.workspace, setting)
    output = attempt.folder / "run"
    if kind == 0:
        _within_a_save(attempt, setting, output)
    else:
        victim = draw.choice(("rank 0", "rank 1") if kind == 1 else ("launch.py", "the runner"))
        kill_at(attempt, setting, output, victim, draw.randint(1, STEPS - 1), draw.uniform(0, 0.4))
    go_on(attempt, setting, output, original)


def go_on(attempt: Attempt, setting: Setting, output: Path, original: Path) -> None:
    """Resume what was interrupted, and compare it with the run that was not.

    Raises:
        AssertionError: more was lost than the steps since the last save, or the end is another.
    """
    reached, saved = runs.last_step(output), runs.newest(output)
    finished = run_folder.read_marker(output / run_folder.FINISHED) is not None
    runs.assert_whole(output)
    attempt.seen.append(
        "finished before" if finished else f"step {reached} reached, checkpoint-{saved} committed"
    )
    assert saved >= (reached - 1) // SAVE_STEPS * SAVE_STEPS, (
        f"step {reached} was reached, and {saved} is the newest save"
    )
    # the others resume without DeepSpeed's launcher, by the same ranks
    launched = attempt.number % 7 == 6
    printed = jobs.resume(attempt.workspace, setting, output, launched=launched)
    if finished:
        assert "finished already" in printed, printed[-2000:]
    elif saved:
        assert f"resuming from {output / f'checkpoint-{saved}'}" in printed, printed[-2000:]
    runs.assert_whole(output)
    runs.assert_same(output, original)
    left = [
        path.name
        for path in output.glob("checkpoint-*")
        if not path.name.rpartition("-")[2].isdigit()
    ]
    assert not left, f"left behind: {left}"


def _within_a_save(attempt: Attempt, setting: Setting, output: Path) -> None:
    """A rank kills itself before, amid or after one of the calls that its saves make."""
    draw = attempt.draw
    counted = jobs.calls(attempt.workspace, setting)
    point = draw.choice(
        sorted({point for of_rank in counted.values() for point in of_rank} - {RACING})
    )
    rank = draw.choice([rank for rank, of_rank in counted.items() if of_rank.get(point)])
    call, when = draw.randint(1, counted[rank][point]), draw.choice(("before", "amid", "after"))
    attempt.what = f"{setting.name}: rank {rank} dies {when} call {call} of {point} within a save"
    note = attempt.folder / "died"
    fault = {
        "act": "kill",
        "point": point,
        "rank": rank,
        "call": call,
        "when": when,
        "note": str(note),
    }
    if attempt.number % 2:
        with jobs.start(attempt.workspace, setting, output, fault=fault) as launch:
            launch.wait()
            attempt.seen.append(f"all gone {launch.gone():.1f} s later")
            printed = launch.printed
    else:  # without a launcher, that would end the other rank: it has to end by itself
        with jobs.fork(attempt.workspace, setting, output, fault=fault) as job:
            assert job.wait() != 0, job.printed[-2000:]
            attempt.seen.append("the other rank ended by itself")
            printed = job.printed
    assert note.exists(), f"it did not come to that call\n{printed[-2000:]}"


def kill_at(
    attempt: Attempt, setting: Setting, output: Path, victim: str, step: int, delay: float = 0.0
) -> None:
    """Start a run, kill one of its processes some time after a step, and wait until all are gone."""
    attempt.what = f"{setting.name}: SIGKILL to {victim} {delay:.2f} s after step {step}"
    with jobs.start(attempt.workspace, setting, output) as launch:
        jobs.wait_for_step(launch, output, step)
        time.sleep(delay)
        with contextlib.suppress(psutil.NoSuchProcess):
            if process := find(launch, victim):
                process.kill()
        launch.wait()
        attempt.seen.append(f"all gone {launch.gone():.1f} s later")
        assert victim.startswith("rank") or "Traceback" not in launch.printed, launch.printed[
            -4000:
        ]


def find(launch: Launch, victim: str) -> psutil.Process | None:
    """A process of a job by what it is; None where it has ended."""
    if victim == "the runner":
        return None if launch.ended else psutil.Process(launch.process.pid)
    if victim == "launch.py":
        return launch.launcher()
    return launch.ranks().get(int(victim.rpartition(" ")[2]))


def random_step(draw: random.Random) -> int:
    """A step at which something happens: after the first, before the last ones."""
    return draw.randint(1, STEPS - 4)


CAMPAIGN = Campaign(
    "kills",
    count=60,
    daily=1,
    means="SIGKILL to a random rank, to launch.py or to the runner at a random moment; every third inside a save, at "
    "one of its writes, syncs, renames, removals or collectives. No process lives 30 s later; the resume ends with "
    "exit code 0; metrics and weights equal the uninterrupted run's to the last digit; no step is lost that was saved.",
    execute=_execute,
)
