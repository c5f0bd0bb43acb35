"""The official scorer's files, in and out, and what it says of a file of predictions.

Source: ``tau-nlp/scrolls``, ``evaluator/`` (formats, checks of ids, names of files) and the metric's output. A file of
predictions is one JSON object of texts by id. Scores are percentages, rounded to four decimals in its file alone.

``quality_hard`` is not a data set but those questions of ``quality`` that its file marks as hard (``is_hard``), and
enters no overall score.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.data.scrolls import datasets, examples
from tape_ds.data.scrolls.examples import Example
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.scoring.text_overlap import OverlapScore

HARD = "quality_hard"
_FORMAT = 'one JSON object of texts by id: {"id1": "text 1", "id2": "text 2", ...}'
_SHOWN = 5


def read_examples(
    name: str, split: str, data_dir: str | Path | None, limit: int | None = None, *, unanswered: bool = False
) -> list[Example]:
    """Return the questions of a data set, or the first ``limit`` of its file.

    Args:
        name, split, data_dir: as for :func:`tape_ds.data.scrolls.examples.read`.
        limit: None for all.
        unanswered: a split may have no reference answers at all, to be written for and not scored.

    Raises:
        UserError: whatever reading finds, questions without published answers.
    """
    raise_if_any(examples.check(name, (split,), data_dir))
    found = examples.read(name, split, data_dir)[:limit]
    without = sum(not example.outputs for example in found)
    if without and not (unanswered and without == len(found)):
        wrong = f"{without} of {len(found)} questions of {name} have no reference answer in this split"
        raise UserError(Problem("split", split, wrong, "take validation, whose answers are published"))
    return found


def read_predictions(path: str | Path) -> dict[str, str]:
    """Return the texts by id that a file holds.

    Raises:
        UserError: no such file, or not of the format; every wrong entry is counted.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = len(pairs) - len(dict(pairs))
        if twice:
            raise ValueError(f"{twice} ids stand twice")
        return dict(pairs)

    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=unique)
    except (OSError, ValueError) as error:
        reason = f"is not readable as predictions ({error})"
        raise UserError(Problem("predictions", str(path), reason, _FORMAT)) from None
    if not isinstance(content, dict):
        raise UserError(Problem("predictions", str(path), "is no JSON object", _FORMAT))
    wrong = [
        storage.shown(key)
        for key, value in content.items()
        if not isinstance(value, str) or not storage.is_utf8(key + value)
    ]
    if wrong:
        raise UserError(Problem("predictions", str(path), f"no text is under {some(wrong)}", _FORMAT))
    return content


def metrics_file(name: str, found: OverlapScore, texts: Sequence[str]) -> dict[str, Any]:
    """Return the content of ``NAME_metrics.json``, by the official scorer's keys and in its order."""
    content: dict[str, Any] = dict(found.parts)
    if found.metric == "rouge":
        content["rouge/geometric_mean"] = found.score
    content["num_predicted"] = found.examples
    content["mean_prediction_length_characters"] = statistics.fmean(map(len, texts))
    content = {key: round(value, 4) for key, value in content.items()}
    content["scrolls_score"] = None if name == HARD else round(found.score, 4)
    return content | {"display_keys": list(found.parts), "display": [content[key] for key in found.parts]}


def remove(folder: Path) -> None:
    """Remove the files that an earlier evaluation left in ``folder``."""
    for name in (*datasets.available(), HARD):
        for path in (folder / f"{name}.json", folder / f"{name}_metrics.json"):
            path.unlink(missing_ok=True)


def some(ids: Sequence[str]) -> str:
    """Return the first few of many ids."""
    return ", ".join(ids[:_SHOWN]) + (" ..." if len(ids) > _SHOWN else "")
