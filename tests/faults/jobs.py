"""Jobs of the small run that the campaigns disturb."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
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
    """Start a run of ``setting`` without a launcher.

    Args:
        workspace: with the material.
        setting: what is trained, and how.
        output: the run's folder; its log is next to it.
        fault: of :mod:`.worker`; without one the launcher itself is started.
        processes: ranks.
        log: file for what it prints.
        changed: fields of the recipe.
    """
    script = ROOT / setting.launcher if fault is None else WORKER
    words = arguments(workspace, setting, output, **changed)
    return Forked(
        script,
        words,
        log or output.with_name(f"{output.name}.log"),
        processes,
        _told(setting, fault),
    )


def start(
    workspace: Path,
    setting: Setting,
    output: Path,
    *,
    fault: Mapping[str, Any] | None = None,
    before: Sequence[str] = (),
    log: Path | None = None,
    **changed: Any,
) -> Launch:
    """:func:`fork`, by DeepSpeed's launcher on two processes; ``before``: words in front of its own."""
    script = ROOT / setting.launcher if fault is None else WORKER
    command = [*before, *deepspeed(2), script, *arguments(workspace, setting, output, **changed)]
    return Launch(command, log or output.with_name(f"{output.name}.log"), _told(setting, fault))


def _told(setting: Setting, fault: Mapping[str, Any] | None) -> dict[str, str]:
    """The worker's view of its fault."""
    return (
        {}
        if fault is None
        else {"FAULT": json.dumps({"launcher": str(ROOT / setting.launcher), **fault})}
    )


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
            with fork(
                workspace, setting, output, fault=counted, start_anew="true", **changed
            ) as job:
                code = job.wait()
                assert code == 0 and (output / run_folder.FINISHED).exists(), (
                    f"{code}: {job.printed[-4000:]}"
                )
    return output


def calls(workspace: Path, setting: Setting) -> dict[int, dict[str, int]]:
    """How often each rank of the reference run called what can be made to fail, within its saves."""
    reference(workspace, setting)
    folder = workspace / "references" / f"{setting.name}.calls"
    return {rank: json.loads((folder / f"calls-{rank}.json").read_text()) for rank in (0, 1)}


def resume(workspace: Path, setting: Setting, output: Path, *, launched: bool) -> str:
    """Resume a run by ``--resume auto``, by DeepSpeed's launcher or by forks; returns what it printed.

    Raises:
        AssertionError: it did not come to its end with exit code 0.
    """
    log = output.with_name(f"{output.name}.resumed.log")
    with (start if launched else fork)(workspace, setting, output, log=log, resume="auto") as job:
        code, printed = job.wait(), job.printed
    assert code == 0 and "Traceback" not in printed, (
        f"the resume ended with {code}\n{printed[-4000:]}"
    )
    return printed


def wait_for(job: Job, what: Callable[[], object]) -> None:
    """Until something is there.

    Raises:
        AssertionError: the job ended before.
    """
    deadline = time.monotonic() + LAUNCH_SECONDS
    while not what():
        assert not job.ended and time.monotonic() < deadline, job.printed[-5000:]
        time.sleep(0.01)


def wait_for_step(job: Job, output: Path, step: int) -> None:
    """Until the run's metrics show this step, or it has finished."""
    wait_for(
        job,
        lambda: (
            last_step(output) >= step
            or run_folder.read_marker(output / run_folder.FINISHED) is not None
        ),
    )
