"""The files that SCROLLS takes as a submission: for each data set one JSON object of texts by id."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.data.scrolls import examples

FOLDER = "scrolls"
TASK = "tape_scrolls_"


def files(folder: Path, tasks: Iterable[str]) -> list[Path]:
    """Return the files of those ``tasks`` that ask a whole data set."""
    return [folder / FOLDER / f"{name}.json" for name in examples.available() if f"{TASK}{name}" in tasks]


def write(folder: Path, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the texts in lm-eval's ``samples`` of each task; remove those of an earlier evaluation."""
    for path in files(folder, [f"{TASK}{name}" for name in examples.available()]):
        path.unlink(missing_ok=True)
    for path in files(folder, samples):
        rows = sorted(samples[TASK + path.stem], key=lambda row: row["doc_id"])
        texts = {row["doc"]["id"]: row["filtered_resps"][0] for row in rows}
        storage.write_text(path, json.dumps(texts) + "\n")
