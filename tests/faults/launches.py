"""Ordinary launches in a row: a job that went well ends with exit code 0, every time."""

from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.runs import SETTINGS

STEPS = 2


def _execute(attempt: Attempt) -> None:
    setting = list(SETTINGS.values())[attempt.number % len(SETTINGS)]
    output = attempt.folder / "run"
    attempt.what = f"{setting.name}: {STEPS} steps"
    changed = {"max_steps": STEPS, "warmup_steps": 1, "save_strategy": "no"}
    with jobs.start(attempt.workspace, setting, output, **changed) as launch:
        code = launch.wait()
        assert code == 0, f"it ended with {code}\n{launch.printed[-4000:]}"
        assert "Traceback" not in launch.printed, launch.printed[-4000:]
        attempt.seen.append(f"exit {code}, last process gone {launch.gone(10):.1f} s later")
    assert runs.last_step(output) == STEPS


CAMPAIGN = Campaign(
    "launches",
    count=50,
    daily=0,  # the tests of the launchers are such launches
    means="An ordinary launch of two steps on two processes: exit code 0, no traceback, no process left.",
    execute=_execute,
)
