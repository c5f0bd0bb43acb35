"""Carry an experiment's steps out: each once, its output in a log; what is there and fits is not done again."""

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tape_ds import installation, results, storage
from tape_ds.errors import UserError
from tape_ds.training.comparison import runs
from tools.reproduce.experiment import ROOMS, ROOT, WORK, Place, Step


def record_of(step: Step, place: Place) -> Path:
    """Where it is kept that a step was done."""
    return step.home(place) / f"{step.name}.json"


def log_of(step: Step, place: Place) -> Path:
    """Where its output goes."""
    return step.home(place) / f"{step.name}.log"


def is_done(step: Step, place: Place, earlier: Sequence[Step] = ()) -> bool:
    """Whether this very command was carried out, its result is still there, whole, and none of the ``earlier`` steps
    that it reads has been carried out again since."""
    record = _record(step, place)
    if record.get("command") != step.command(place) or not _is_whole(step.file(place)):
        return False
    inputs = [_record(other, place).get("finished", "") for other in earlier if step.reads(other)]
    return all(finished <= record["finished"] for finished in inputs)


def _record(step: Step, place: Place) -> dict[str, Any]:
    """What is kept of a step; empty where that is nothing, or damaged."""
    try:
        record = json.loads(record_of(step, place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(record, dict) and {"command", "seconds", "finished"} <= set(record)
    return record if whole else {}


def _is_whole(file: Path) -> bool:
    """Whether a step's result can be read; one that is no result is as good as none: the step makes it again."""
    if file.suffix != ".json":
        return file.is_file()
    try:
        return results.load(file).finished is not None
    except UserError:
        return False


def carry_out(steps: Sequence[Step], place: Place) -> Step | None:
    """Run what is not done, one after another; the first that fails, if one does."""
    for number, step in enumerate(steps, 1):
        if is_done(step, place, steps[: number - 1]):
            print(f"{number}/{len(steps)} {step.name}: done, not repeated", flush=True)
            continue
        command, log = step.command(place), log_of(step, place)
        print(f"{number}/{len(steps)} {step.name}: {shlex.join(command)}", flush=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        if run(command, log) != 0 or not _is_whole(step.file(place)):
            return step
        seconds = round(time.monotonic() - begun, 3)
        record = {"command": command, "seconds": seconds, "finished": results.now()}
        storage.write_json(record_of(step, place), record)
    return None


def run(command: Sequence[str], log: Path) -> int:
    """One command, from where places start, with this Python; its exit code. A command that starts processes itself
    shares out the cores between them, one that does not may have them all."""
    own = runs.environment() if command[0] == "deepspeed" else installation.environment()
    with open(log, "w", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        return subprocess.run(real(command), stdout=file, stderr=file, env=own, cwd=WORK).returncode


def real(command: Sequence[str]) -> list[str]:
    """The command as it is started here: by this Python, with the scripts of this installation; and on one machine on a
    free port, so that experiments can share it."""
    program, *rest = [str(ROOT / word) if word.split("/")[0] in ROOMS else word for word in command]
    if program == "python":
        return [sys.executable, *rest]
    if program != "deepspeed":
        return list(command)
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner"]
    if any(word in rest for word in ("--hostfile", "-H", "--master_port")):
        return [*launcher, *rest]
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return [*launcher, "--master_port", str(port), *rest]


def seconds(steps: Sequence[Step], place: Place) -> dict[str, Any]:
    """How long each step took when it was carried out, by its name; None: nobody has noted it."""
    return {step.name: _record(step, place).get("seconds") for step in steps}
