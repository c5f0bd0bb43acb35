"""Jobs of the small run that the campaigns disturb."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from tape_ds import run_folder
from tests.faults.runs import Setting, arguments, last_step
from tests.processes import LAUNCH_SECONDS, ROOT, Forked, Job, Launch, deepspeed

WORKER = ROOT / "tests" / "faults" / "worker.py"


def fork(
    workspace: Path,
    setting: Setting,
    output: Path,
    *,
    fault: Mapping[str, Any] | None = None,
    processes: int = 2,
    log: Path | None = None,
    **changed: Any,
) -> Forked:
    """:func:`start`, by forks."""
    script = WORKER if fault is not None else ROOT / setting.launcher
    words = arguments(workspace, setting, output, **changed)
    return Forked(script, words, log or _log_of(output), processes, _told(setting, fault))


def start(
    workspace: Path,
    setting: Setting,
    output: Path,
    *,
    fault: Mapping[str, Any] | None = None,
    processes: int = 2,
    before: Sequence[str] = (),
    log: Path | None = None,
    **changed: Any,
) -> Launch:
    """Start a run of ``setting`` on two processes.

    Args:
        workspace: with the material.
        setting: what is trained, and how.
        output: the run's folder; its log lies beside it.
        fault: what :mod:`.worker` does to it; without one the launcher is started itself.
        processes: ranks.
        before: words before DeepSpeed's own.
        log: where to write what it prints.
        changed: fields of the recipe.
    """
    script = WORKER if fault is not None else ROOT / setting.launcher
    command = [*before, *deepspeed(processes), script, *arguments(workspace, setting, output, **changed)]
    return Launch(command, log or _log_of(output), _told(setting, fault))


def _told(setting: Setting, fault: Mapping[str, Any] | None) -> dict[str, str]:
    """What the worker is told of its fault."""
    return {} if fault is None else {"FAULT": json.dumps({"launcher": str(ROOT / setting.launcher), **fault})}


def _log_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.log")


def reference(workspace: Path, setting: Setting, **changed: Any) -> Path:
    """The folder of a run of ``setting`` that nothing happened to, made once in a workspace, whoever asks first.

    It ran under :mod:`.worker`, which counted what a save calls: ``calls-R.json`` of each rank.
    """
    name = "-".join([setting.name, *(f"{key}-{value}" for key, value in changed.items())])
    output = workspace / "references" / name
    if (output / run_folder.FINISHED).exists():
        return output
    counted = {"act": "count", "into": str(workspace / "references" / f"{name}.calls")}
    output.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{output}.lock"):
        if not (output / run_folder.FINISHED).exists():
            _run_job(workspace, setting, output, counted, changed)
    return output


def _run_job(
    workspace: Path, setting: Setting, output: Path, counted: Mapping[str, Any], changed: Mapping[str, Any]
) -> None:
    with fork(workspace, setting, output, fault=counted, start_anew="true", **changed) as job:
        code = job.wait()
        assert code == 0 and (output / run_folder.FINISHED).exists(), f"{code}: {job.printed[-4000:]}"


def calls(workspace: Path, setting: Setting) -> dict[int, dict[str, int]]:
    """How often each rank of the reference run called what can be made to fail, within its saves."""
    reference(workspace, setting)
    folder = workspace / "references" / f"{setting.name}.calls"
    return {rank: json.loads((folder / f"calls-{rank}.json").read_text()) for rank in (0, 1)}


def resume(workspace: Path, setting: Setting, output: Path, *, launched: bool) -> str:
    """Go on with a run by ``--resume auto``; returns what it printed.

    Args:
        workspace: with the material.
        setting: the run's.
        output: its folder.
        launched: by DeepSpeed's launcher, not by forks.

    Raises:
        AssertionError: it did not come to its end with exit code 0.
    """
    log = output.with_name(f"{output.name}.resumed.log")
    with (start if launched else fork)(workspace, setting, output, log=log, resume="auto") as job:
        code = job.wait()
        printed = job.printed
    assert code == 0, f"the resume ended with {code}\n{printed[-4000:]}"
    assert "Traceback" not in printed, printed[-4000:]
    return printed


def wait_for_step(job: Job, output: Path, step: int) -> None:
    """Until the run's metrics show this step, or it has ended."""
    deadline = time.monotonic() + LAUNCH_SECONDS
    while last_step(output) < step and not job.ended:
        assert time.monotonic() < deadline, f"step {step} did not come\n{job.printed[-3000:]}"
        time.sleep(0.01)
    assert not job.ended or run_folder.finished(output) is not None, f"it ended by itself\n{job.printed[-3000:]}"
