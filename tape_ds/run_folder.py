"""The files of a run's folder, and its markers.

    metrics.jsonl, results/, trained/     for people
    checkpoint-N/                         committed checkpoints (see tape_ds.checkpoint)
    begun                                 marker, written first: which run this is, and which files of trained/ are its
    finished                              marker, written last: the run is complete
    stopped                               marker: the run ended early on request
    save_now                              written by a person: save at the next step; its text names the checkpoint
    trackers.json                         the run's id at a tracker
    ranks/                                a file for each living rank (see tape_ds.resilience.run_lock)
    nonfinite.jsonl, stacks/              written by guards and watchdog

No heavy imports: keep_alive reads it too.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import Problem

METRICS = "metrics.jsonl"
TRAINED = "trained"
RESULTS = "results"
EVALUATION = "evaluation"
"""Evaluations of the run's weights write into it; the run itself does not."""
BEGUN = "begun"
FINISHED = "finished"
STOPPED = "stopped"
TRACKERS = "trackers.json"
SAVE_NOW = "save_now"
RANKS = "ranks"
NONFINITE = "nonfinite.jsonl"
STACKS = "stacks"
RECORD = "trained.json"
WHOLE_WEIGHTS = "model*.safetensors"
"""Files in the folder ``trained``: the record of :mod:`tape_ds.checkpoint.trained`, and a whole model's weights."""
PROFILE = "profile"
OWN_FILES: Mapping[str, re.Pattern[str]] = {
    RESULTS: re.compile(
        r"(run|loss|loss_by_position|position_updates|passkey|ruler|perplexity|answers|exact_match|addressing)"
        r"\.(json|png|csv|md)"
    ),
    PROFILE: re.compile(r"(trace|memory|summary)_rank\d+\.(json\.gz|pickle|md)"),
}
"""Folder -> names of the files that a run writes there; any other file in it is a person's."""
_TRAINED_FILES = re.compile(
    r"trained\.(json|safetensors)|adapter_(config\.json|model\.safetensors)|(generation_)?config\.json"
    r"|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|chat_template\.jinja"
    r"|tokenizer(_config)?\.(json|model)|(special_tokens_map|added_tokens|vocab)\.json|vocab\.txt|merges\.txt"
)
"""Names of the files of trained weights, for folders of older versions, which kept no list."""


def trained_of(folder: Path) -> Path:
    """Return the folder ``trained`` of a run's folder; any other folder as it is."""
    if (folder / TRAINED / RECORD).is_file():
        return folder / TRAINED
    return folder


def mark(output: Path, marker: str, step: int, **facts: Any) -> None:
    """Write the marker :data:`FINISHED` or :data:`STOPPED`, with the run's step and the time."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    storage.write_json(output / marker, {"step": step, marker: moment, **facts})


def begin(output: Path, step: int, identity: Mapping[str, Any]) -> None:
    """Write the marker :data:`BEGUN` of a run that starts at ``step``; :func:`trained_files` stays as it is."""
    listed = trained_files(output)
    # else it is an older version's, which kept no list
    if listed is None and not (output / TRAINED).exists():
        listed = []
    mark(output, BEGUN, step, identity=dict(identity), trained=listed)


def trained_files(output: Path) -> list[str] | None:
    """Return the paths within ``trained`` of the files that a run wrote there; None where no run kept a list."""
    names = (read_marker(output / BEGUN) or {}).get("trained")
    if isinstance(names, list):
        return names
    return None


def older_trained_files(output: Path) -> list[str]:
    """Return the paths within ``trained`` of files named as a run's, where a run that kept no list left its record."""
    folder = output / TRAINED
    record = read_marker(folder / RECORD) or {}
    if not {"method", "names", "format"} <= record.keys():
        return []
    names = []
    for path in folder.iterdir():
        if path.is_file() and _TRAINED_FILES.fullmatch(path.name):
            names.append(path.name)
    return names


def add_trained_files(output: Path, names: Iterable[str]) -> None:
    """Add to the list of :func:`trained_files`, before these files are in place."""
    begun = read_marker(output / BEGUN)
    if begun is not None:
        known = {*(trained_files(output) or []), *names}
        storage.write_json(output / BEGUN, {**begun, "trained": sorted(known)})


def read_marker(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(content, dict):
        return content
    return None


def check_whole(field: str, name_or_path: str, folder: str | Path) -> list[Problem]:
    """Check that ``folder``, of ``name_or_path``, is a whole model and not only the weights that a run trained."""
    folder = Path(folder)
    if not (folder / RECORD).exists() or any(folder.glob(WHOLE_WEIGHTS)):
        return []
    # transformers would draw what is missing at random, with a warning
    remedy = f"make a whole model of it: tape-ds merge {name_or_path} OUT"
    return [Problem(field, name_or_path, "it holds only what a run trained of its base", remedy)]
