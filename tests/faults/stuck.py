"""A rank that never comes: the watchdog names it, leaves every rank's stacks, and ends the job."""

from tape_ds import run_folder
from tests.faults import jobs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.runs import SETTINGS

SECONDS = 10


def _execute(attempt: Attempt) -> None:
    setting, output = SETTINGS["packed"], attempt.folder / "run"
    rank, batches = attempt.number % 2, attempt.draw.randint(4, 20)
    attempt.what = f"rank {rank} waits for ever where it reads its data, after {batches} batches"
    fault = {"act": "hang", "rank": rank, "batches": batches}
    changed = {"watchdog_seconds": SECONDS, "dataloader_num_workers": 0}
    with jobs.fork(attempt.workspace, setting, output, fault=fault, **changed) as job:
        code = job.wait()
        attempt.seen.append(f"exit {code}")
        printed = job.printed
    assert code not in (0, 2), printed[-3000:]
    assert f"rank {rank} is missing" in printed and "'data'" in printed, printed[-4000:]
    stacks = sorted(path.name for path in (output / run_folder.STACKS).iterdir())
    assert len(stacks) == 2, f"stacks of {stacks}"
    attempt.seen.append(f"stacks: {', '.join(stacks)} (the watchdog's own code is 4)")


CAMPAIGN = Campaign(
    "stuck",
    count=4,
    daily=1,
    means=f"One rank waits for ever where it reads its data, watchdog_seconds is {SECONDS}: every rank's stacks are "
    "written, the missing rank and its phase are named, the job ends with a code that is neither 0 nor 2.",
    execute=_execute,
)
