"""The official scorer's files, in and out, and what it says of a file of predictions.

Source: ``tau-nlp/scrolls``, ``evaluator/`` (formats, checks of ids, names of files) and the metric's output. A file of
predictions is one JSON object of texts by id. Scores are percentages, rounded to four decimals in its file alone.

``quality_hard`` is not a data set but those questions of ``quality`` that its file marks as hard (``is_hard``): it is
scored on the predictions of ``quality``, and enters no overall score.
"""

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.data.scrolls import datasets, examples
from tape_ds.data.scrolls.examples import Example
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.scoring import text_overlap
from tape_ds.scoring.text_overlap import OverlapScore

WHOLE, HARD = "quality", "quality_hard"
_FORMAT = 'one JSON object of texts by id: {"id1": "text 1", "id2": "text 2", ...}'
_SHOWN = 5


def names() -> list[str]:
    """Everything that has a score."""
    return [*datasets.available(), HARD]


def read_examples(
    name: str, split: str, data_dir: str | Path | None, limit: int | None = None, *, unanswered: bool = False
) -> list[Example]:
    """The questions that ``name`` is scored on, of the first ``limit`` of its file.

    Args:
        name: of :func:`names`.
        split, data_dir: as for :func:`tape_ds.data.scrolls.examples.read`.
        limit: None for all.
        unanswered: a split may have no reference answers at all, to be written for and not scored.

    Raises:
        UserError: an unknown name, whatever reading finds, questions without published answers, none that is hard.
    """
    if name not in names():
        raise UserError(Problem("dataset", name, "no such data set", did_you_mean(name, names())))
    kept_as = WHOLE if name == HARD else name
    raise_if_any(examples.check(kept_as, (split,), data_dir))
    found = examples.read(kept_as, split, data_dir)[:limit]
    found = hard(found) if name == HARD else found
    if not found:
        wrong = f"no row of {WHOLE}, {split}, is marked as hard (is_hard)"
        raise UserError(Problem("dataset", name, wrong, f"score {WHOLE}, or give files that mark them"))
    without = sum(not example.outputs for example in found)
    if without and not (unanswered and without == len(found)):
        wrong = f"{without} of {len(found)} questions of {name} have no reference answer in this split"
        raise UserError(Problem("split", split, wrong, "take validation, whose answers are published"))
    return found


def hard(found: Sequence[Example]) -> list[Example]:
    """Those that the file marks as hard."""
    return [example for example in found if example.hard]


def read_predictions(path: str | Path) -> dict[str, str]:
    """The texts by id that a file holds.

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
    except OSError as error:
        raise UserError(
            Problem("predictions", str(path), error.strerror or str(error), "name a readable file")
        ) from None
    except ValueError as error:
        raise UserError(
            Problem("predictions", str(path), f"is not readable as predictions ({error})", _FORMAT)
        ) from None
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


def check_ids(predictions: Mapping[str, str], expected: Sequence[str], allowed: Sequence[str] = ()) -> list[Problem]:
    """Ids without a prediction, and predictions for ids that are neither ``expected`` nor ``allowed``."""
    known = {*expected, *allowed}
    missing = [each for each in expected if each not in predictions]
    redundant = [each for each in predictions if each not in known]
    problems = []
    if missing:
        wrong = f"{len(missing)} of {len(expected)} ids have no prediction: {some(missing)}"
        problems.append(Problem("predictions", len(predictions), wrong, "write a text for each, which may be empty"))
    if redundant:
        wrong = f"{len(redundant)} predictions are for ids that are not asked: {some(redundant)}"
        problems.append(Problem("predictions", len(predictions), wrong, "check --dataset and --split, or remove them"))
    return problems


def score(name: str, predictions: Mapping[str, str], asked: Sequence[Example]) -> OverlapScore:
    """What the predictions for ``asked`` are worth by the metric of ``name``."""
    metric = datasets.find(WHOLE if name == HARD else name).metric
    texts = [predictions[example.id] for example in asked]
    return text_overlap.score(metric, texts, [example.outputs for example in asked])


def remove(names_kept: Collection[str], folder: Path) -> None:
    """Remove the files of the official form that an earlier evaluation left in ``folder``, but for those named."""
    for name in names():
        for path in (folder / f"{name}.json", folder / f"{name}_metrics.json"):
            if path.name not in names_kept:
                path.unlink(missing_ok=True)


def mean_characters(texts: Sequence[str]) -> float:
    """Mean length of predictions in characters."""
    return statistics.fmean(map(len, texts))


def metrics_file(
    name: str, found: OverlapScore, predictions: Mapping[str, str], asked: Sequence[Example]
) -> dict[str, Any]:
    """The content of ``NAME_metrics.json``, by the official scorer's keys and in its order."""
    content: dict[str, Any] = dict(found.parts)
    display = list(found.parts)
    if found.metric == "rouge":
        content["rouge/geometric_mean"] = found.score
    content["num_predicted"] = found.examples
    content["mean_prediction_length_characters"] = mean_characters([predictions[each.id] for each in asked])
    content = {key: round(value, 4) for key, value in content.items()}
    content["scrolls_score"] = None if name == HARD else round(found.score, 4)
    content["display_keys"] = display
    content["display"] = [content[key] for key in display]
    return content


def write(content: Mapping[str, Any], path: Path, indent: int | None = None) -> Path:
    """Write a JSON file that is complete or absent."""
    storage.write_text(path, json.dumps(content, indent=indent) + "\n")
    return path


def some(ids: Sequence[str]) -> str:
    """The first few of many ids."""
    return ", ".join(ids[:_SHOWN]) + (" ..." if len(ids) > _SHOWN else "")
