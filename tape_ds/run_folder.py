"""The files of a run's folder, and its markers.

    metrics.jsonl, results/, trained/     for people
    checkpoint-N/                         committed checkpoints (see tape_ds.checkpoint)
    finished                              marker, written last: the run is complete
    stopped                               marker: the run ended early on request
    save_now                              written by a person: save at the next step; its text names the checkpoint
    trackers.json                         the run's id at a tracker
    ranks/                                a file for each living rank (see tape_ds.resilience.run_lock)
    nonfinite.jsonl, stacks/              written by guards and watchdog

No heavy imports: keep_alive reads it too.
"""

import json
import time
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import Problem

_TIME = "%Y-%m-%dT%H:%M:%S%z"
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
"""Files in the folder ``trained``: the record of :mod:`tape_ds.checkpoint.trained`, and a whole model's weights."""


def trained_of(folder: Path) -> Path:
    """Return the folder ``trained`` of a run's folder; any other folder as it is."""
    return folder / TRAINED if (folder / TRAINED / RECORD).is_file() else folder


def mark_finished(output: Path, step: int, identity: dict[str, Any]) -> None:
    """Mark that the run has completed its ``step`` steps and everything after them."""
    storage.write_json(output / FINISHED, {"step": step, "finished": time.strftime(_TIME), "identity": identity})


def finished(output: Path) -> dict[str, Any] | None:
    return read(output / FINISHED)


def mark_stopped(output: Path, step: int, reason: str) -> None:
    storage.write_json(output / STOPPED, {"step": step, "stopped": time.strftime(_TIME), "reason": reason})


def stopped(output: Path) -> dict[str, Any] | None:
    return read(output / STOPPED)


def clear_markers(output: Path) -> None:
    for name in (FINISHED, STOPPED):
        (output / name).unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def check_whole(field: str, name_or_path: str, folder: str | Path) -> list[Problem]:
    """Check that ``folder``, of ``name_or_path``, is a whole model and not only the weights that a run trained."""
    folder = Path(folder)
    if not (folder / RECORD).exists() or any(folder.glob(WHOLE_WEIGHTS)):
        return []
    remedy = f"make a whole model of it: tape-ds merge {name_or_path} OUT"
    return [Problem(field, name_or_path, "it holds only what a run trained of its base", remedy)]
