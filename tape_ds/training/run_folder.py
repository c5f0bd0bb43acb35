"""What lies where in a run's folder, and whether the run has come to its end.

    metrics.jsonl, results/, trained/     what a person looks at
    checkpoint-N/                         committed checkpoints (see tape_ds.training.checkpoint)
    finished                              marker, written last of all: nothing is left to do here
    save_now                              put there by a person: save at the next step; its text names the checkpoint
    ranks/                                a file for each living rank (see tape_ds.training.run_lock)
    nonfinite.jsonl, stacks/              what guards and watchdog have found

No heavy import: what starts and restarts runs reads this as well.
"""

import json
import time
from pathlib import Path
from typing import Any

from tape_ds import storage

METRICS = "metrics.jsonl"
TRAINED = "trained"
RESULTS = "results"
FINISHED = "finished"
SAVE_NOW = "save_now"
RANKS = "ranks"
NONFINITE = "nonfinite.jsonl"
STACKS = "stacks"


def mark_finished(output: Path, step: int, identity: dict[str, Any]) -> None:
    """Say that the run of this ``identity`` has done all its ``step`` steps and everything after them."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    storage.write_json(output / FINISHED, {"step": step, "finished": when, "identity": identity})


def finished(output: Path) -> dict[str, Any] | None:
    """What :func:`mark_finished` wrote; None where the run has not come to its end."""
    try:
        found = json.loads((output / FINISHED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def clear_finished(output: Path) -> None:
    """Take the marker back: there is something to do again."""
    (output / FINISHED).unlink(missing_ok=True)
