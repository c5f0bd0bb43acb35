"""Another number of ranks: a checkpoint of two goes on with one process, and the other way round."""

from pathlib import Path

from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.kills import random_step
from tests.faults.runs import SETTINGS, STEPS

TOLERANCE = 1e-5
"""Of a loss in fp32: sums are taken in another order."""
STAGES = ("zero1", "zero2", "zero3")


def _execute(attempt: Attempt) -> None:
    number, setting = attempt.number, SETTINGS["packed"]
    before, after = ((2, 1), (1, 2))[number % 2]
    stage = STAGES[number // 2 % 3]
    step = random_step(attempt.draw)
    attempt.what = f"{stage}: {before} -> {after} ranks at step {step}"
    original = jobs.reference(attempt.workspace, setting, deepspeed=stage)
    output = attempt.folder / "run"
    changed = {"deepspeed": stage, "keep_steps": step}
    _run(attempt, before, output, **changed)
    again = attempt.folder / "again"
    _run(attempt, after, again, resume_from_checkpoint=output / f"checkpoint-{step}", **changed)
    lines, expected = runs.metrics(again), runs.metrics(original)[step:]
    assert [line[0] for line in lines] == list(range(step + 1, STEPS + 1)), (
        f"steps {[line[0] for line in lines]}"
    )
    assert [line[4] for line in lines] == [line[4] for line in expected], (
        "tokens are not consecutive"
    )
    worst = max(abs(mine[1] - other[1]) for mine, other in zip(lines, expected, strict=True))
    attempt.seen.append(f"{len(lines)} losses, differing by {worst:.1e} at most")
    assert worst <= TOLERANCE, f"losses {lines} instead of {expected}"


def _run(attempt: Attempt, processes: int, output: Path, **changed: object) -> None:
    with jobs.fork(
        attempt.workspace, SETTINGS["packed"], output, processes=processes, **changed
    ) as job:
        assert job.wait() == 0, job.printed[-4000:]


CAMPAIGN = Campaign(
    "ranks",
    count=6,
    daily=0,  # tests/integration/test_resharded_runs.py is such a run
    means="A run is resumed on another number of processes (2 -> 1, 1 -> 2) at ZeRO 1, 2 and 3: every loss after it "
    f"within {TOLERANCE:g} of the uninterrupted run's, no token twice, none skipped.",
    execute=_execute,
)
