"""What lies where in a run's folder, and whether the run has come to its end.

    metrics.jsonl, results/, trained/     what a person looks at
    checkpoint-N/                         committed checkpoints (see tape_ds.checkpoint)
    finished                              marker, written last of all: nothing is left to do here
    stopped                               marker of a run that ended early because somebody asked for it
    save_now                              put there by a person: save at the next step; its text names the checkpoint
    trackers.json                         by which a tracker knows the run again
    ranks/                                a file for each living rank (see tape_ds.resilience.run_lock)
    nonfinite.jsonl, stacks/              what guards and watchdog have found

No heavy import: what starts and restarts runs reads this as well.
"""

import json
import time
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import Problem

METRICS = "metrics.jsonl"
TRAINED = "trained"
RESULTS = "results"
FINISHED = "finished"
STOPPED = "stopped"
TRACKERS = "trackers.json"
SAVE_NOW = "save_now"
RANKS = "ranks"
NONFINITE = "nonfinite.jsonl"
STACKS = "stacks"
RECORD, WHOLE_WEIGHTS = "trained.json", "model*.safetensors"
"""What in the folder ``trained`` says how it was made (:mod:`tape_ds.checkpoint.trained`), and whole models' files."""


def mark_finished(output: Path, step: int, identity: dict[str, Any]) -> None:
    """Say that the run of this ``identity`` has done all its ``step`` steps and everything after them."""
    storage.write_json(output / FINISHED, {"step": step, "finished": _now(), "identity": identity})


def finished(output: Path) -> dict[str, Any] | None:
    """Return what :func:`mark_finished` wrote; None where the run has not come to its end."""
    return _read(output / FINISHED)


def mark_stopped(output: Path, step: int, reason: str) -> None:
    """Say that the run ended after ``step`` steps because of ``reason``, and goes on where it is resumed."""
    storage.write_json(output / STOPPED, {"step": step, "stopped": _now(), "reason": reason})


def stopped(output: Path) -> dict[str, Any] | None:
    """Return what :func:`mark_stopped` wrote; None where the run was not stopped."""
    return _read(output / STOPPED)


def clear_markers(output: Path) -> None:
    """Take both markers back: there is something to do again."""
    for name in (FINISHED, STOPPED):
        (output / name).unlink(missing_ok=True)


def tracker_id(output: Path) -> str | None:
    """Return the run's id at W&B; None where it has none yet."""
    found = (_read(output / TRACKERS) or {}).get("wandb")
    return found if isinstance(found, str) else None


def store_tracker_id(output: Path, known: str) -> None:
    """Keep the run's id at W&B for whoever goes on with it."""
    storage.write_json(output / TRACKERS, {"wandb": known})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def check_whole(field: str, name_or_path: str, folder: str | Path) -> list[Problem]:
    """Whether ``folder`` (what ``name_or_path`` leads to) is a whole model and not what a run trained of one."""
    folder = Path(folder)
    if not (folder / RECORD).exists() or any(folder.glob(WHOLE_WEIGHTS)):
        return []
    remedy = f"make a whole model of it: tape-ds merge {name_or_path} OUT"
    return [Problem(field, name_or_path, "it holds only what a run trained of its base", remedy)]
