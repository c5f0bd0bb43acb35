"""A disk that is full, read-only or slow while a checkpoint is saved: the old one stays, and training goes on.

A real file system of some megabytes (tmpfs) where this user may mount one; where not, and for failures at a chosen
write, calls within a save fail with the system's own error (:mod:`.worker`).
"""

import contextlib
import errno
import shutil
from pathlib import Path

import pytest

from tape_ds import checkpoint, run_folder
from tape_ds.checkpoint import format
from tests.disks import mounted
from tests.faults import jobs, runs
from tests.faults.campaign import Attempt, Campaign
from tests.faults.runs import SETTINGS, STEPS
from tests.processes import Job

SETTING = SETTINGS["streamed"]
KINDS = ("calls", "full", "calls", "read-only", "calls", "full", "calls", "slow", "calls", "full")
SPARE = 16 * 2**20
"""Bytes that a save leaves free."""


def _execute(attempt: Attempt) -> None:
    kind = KINDS[attempt.number % len(KINDS)]
    try:
        {"calls": _calls, "full": _full, "read-only": _read_only, "slow": _slow}[kind](attempt)
    except pytest.skip.Exception:  # this user may mount nothing
        _calls(attempt)


def _calls(attempt: Attempt) -> None:
    """The calls of a rank's second or third save fail from a drawn one on, to that save's end."""
    draw, output = attempt.draw, attempt.folder / "run"
    original = jobs.reference(attempt.workspace, SETTING)
    counted = jobs.calls(attempt.workspace, SETTING)
    points = ("torch.save", "os.fsync", "os.replace", "Path.write_text")
    point = draw.choice(points)
    rank = draw.choice([rank for rank, of_rank in counted.items() if of_rank.get(point)])
    # the reference run saved four times
    save, call = (
        draw.choice((2, 3)),
        draw.randint(1, counted[rank][point] // 4),
    )
    number = draw.choice((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO))
    attempt.what = (
        f"rank {rank}: {errno.errorcode[number]} from call {call} of {point} on within save {save}"
    )
    fault = {
        "act": "fail",
        "point": point,
        "rank": rank,
        "call": call,
        "save": save,
        "errno": number,
    }
    with jobs.fork(attempt.workspace, SETTING, output, fault=fault) as job:
        _assert_survived(attempt, job, output, original)


def _assert_survived(attempt: Attempt, job: Job, output: Path, original: Path) -> None:
    """It ran to its end, said what it could not save, and what it saved is whole."""
    code, printed = job.wait(), job.printed
    assert code == 0, f"it ended with {code}\n{printed[-5000:]}"
    assert "Traceback" not in printed, printed[-5000:]
    failed = printed.count("CHECKPOINT NOT SAVED")
    assert failed >= 1, f"no save failed, or nobody said so\n{printed[-3000:]}"
    assert "there is no" in printed or "there is checkpoint-" in printed, printed[-3000:]
    attempt.seen.append(
        f"exit 0, {failed} save(s) given up, {checkpoint.committed(output)[-1].name} is the newest"
    )
    runs.assert_whole(output)
    runs.assert_same(output, original)
    assert runs.newest(output) == STEPS, "the saves after it did not succeed"


def _full(attempt: Attempt) -> None:
    """Something else fills the disk after the first save, to a few bytes or to none, and goes away again later."""
    draw = attempt.draw
    original = jobs.reference(attempt.workspace, SETTING)
    left = draw.choice((0, 4096, 200_000, 500_000, SPARE + 2**19))
    attempt.what = (
        f"a real disk with {left:,} bytes left after the first save, and room again later"
    )
    with mounted(attempt.folder / "disk", "48m") as disk:
        output = disk / "run"
        log = attempt.folder / "run.log"
        with jobs.fork(attempt.workspace, SETTING, output, log=log) as job:
            jobs.wait_for(job, lambda: checkpoint.committed(output))
            _fill(disk, left)
            jobs.wait_for(job, lambda: "CHECKPOINT NOT SAVED" in job.printed)
            (disk / "ballast").unlink()
            _assert_survived(attempt, job, output, original)
        assert "free" in job.printed and ("full" in job.printed or "missing" in job.printed)
        rest = [
            path.name
            for path in output.rglob("*")
            if path.name.endswith((checkpoint.WRITING, format.REMOVED))
        ]
        assert not rest and run_folder.read_marker(output / run_folder.FINISHED) is not None, (
            f"left behind: {rest}"
        )


def _fill(disk: Path, left: int) -> None:
    """Write until ``left`` bytes are free."""
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        free = shutil.disk_usage(disk).free
        while free > left:
            file.write(bytes(min(2**20, free - left)))
            free = shutil.disk_usage(disk).free


def _read_only(attempt: Attempt) -> None:
    """Nothing on the disk can be changed for the length of a save. (A real file system cannot be made read-only while
    a run holds its locks there.)"""
    output, save = attempt.folder / "run", attempt.draw.choice((2, 3))
    original = jobs.reference(attempt.workspace, SETTING)
    attempt.what = f"every change is refused as on a read-only disk within save {save}"
    fault = {
        "act": "fail",
        "point": "*",
        "rank": None,
        "call": 1,
        "save": save,
        "errno": errno.EROFS,
    }
    with jobs.fork(attempt.workspace, SETTING, output, fault=fault) as job:
        _assert_survived(attempt, job, output, original)
        assert "Read-only" in job.printed, job.printed[-3000:]


def _slow(attempt: Attempt) -> None:
    """Every sync takes long; in the background or not."""
    output, seconds = attempt.folder / "run", 0.3
    original = jobs.reference(attempt.workspace, SETTING)
    background = attempt.draw.random() < 0.5
    attempt.what = f"every sync takes {seconds} s, async_save {str(background).lower()}"
    fault = {"act": "slow", "seconds": seconds}
    changed = {"async_save": str(background).lower(), "save_steps": 7}
    with jobs.fork(attempt.workspace, SETTING, output, fault=fault, **changed) as job:
        code = job.wait()
        assert code == 0 and "Traceback" not in job.printed, job.printed[-4000:]
    runs.assert_whole(output)
    runs.assert_same(output, original)
    attempt.seen.append("exit 0, every save whole")


CAMPAIGN = Campaign(
    "disks",
    count=10,
    daily=1,
    means="The disk is full, over its quota, read-only or broken from some write of a save on; or a real one of some "
    "megabytes is filled by something else; or every sync is slow. Training goes on to its end with exit code 0, the "
    "message says what is missing, every committed checkpoint is whole, later saves succeed.",
    execute=_execute,
)
