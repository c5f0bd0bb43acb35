"""The stored RULER result of another model, and which of its questions are those that are asked now.

Scores are compared question by question, so both models must be asked the same: the same texts, drawn with one seed and
haystack, that the tokenizer measures alike. Where a task at a length has other questions, it is named and left out.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.data.sources import Source
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.numbers import length as length_label
from tape_ds.results import Result
from tape_ds.scoring.ruler_generators import hides_in_essays
from tape_ds.scoring.ruler_questions import RulerQuestion

FIELD = "--against"
Cell = tuple[str, int]
"""Task and length."""


def file_of(given: str) -> Path:
    """Return the file of a result that is given as its folder or as itself."""
    path = Path(given)
    if path.is_dir():
        return path / "ruler.json"
    return path


def read(given: str) -> Result:
    file = file_of(given)
    try:
        stored = results.load(file)
        for row in stored.figures["replies"]:
            # all that questions are compared by
            if not {"task", "length", "score", "tokens", "answers"} <= row.keys():
                raise KeyError("score")
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        wrong = f"{file.name} in it is no result of this command ({type(error).__name__})"
        remedy = "name the folder of results that 'tape-ds evaluate ruler' wrote for the base"
        raise UserError(Problem(FIELD, given, wrong, remedy)) from error
    return stored


def check(options: argparse.Namespace, stored: Result) -> list[Problem]:
    """Return a problem for each setting that makes all questions others; visible before one is drawn."""
    given = options.against
    settings = {
        "samples": (
            stored.config.get("samples"),
            "it has {} questions of each task and length, this command asks {}",
        ),
        "seed": (stored.seed, "its questions were drawn with --seed {}, these with {}"),
        "questions_per_text": (
            stored.config.get("questions_per_text", 1),
            "its texts were asked {} questions each, these {}",
        ),
    }
    problems = []
    for name, (theirs, reason) in settings.items():
        own = getattr(options, name)
        if theirs != own:
            remedy = f"give --{name} {theirs}, or compare with another result"
            problems.append(Problem(FIELD, given, reason.format(theirs, own), remedy))
    if bool(stored.config.get("chat")) != options.chat:
        reason = "its questions were texts to continue, these are chats"
        remedy = "leave --chat out, or compare with another result"
        if stored.config.get("chat"):
            reason = "its questions were chats, these are texts to continue"
            remedy = "give --chat, or compare with another result"
        problems.append(Problem(FIELD, given, reason, remedy))
    return problems


def common(
    given: str,
    stored: Result,
    questions: Sequence[RulerQuestion],
    haystack: Source,
    sentences: str | None,
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the stored replies to ``questions``, and what is not compared, in words: why, and of which tasks and
    lengths.

    Args:
        haystack: of these questions.
        sentences: what split it, if a task needs it.

    Raises:
        UserError: no task at a length was asked the same questions.
    """
    theirs = _by_cell(stored.figures["replies"])
    own = _by_cell(map(_as_stored, questions))
    # spec -> fingerprint; its own base is no haystack, and no file of questions is recorded
    same_essays = (
        haystack.fingerprint() in stored.data.values()
        and stored.config.get("sentences") == sentences
    )
    replies: list[Mapping[str, Any]] = []
    # by reason
    others: defaultdict[str, list[Cell]] = defaultdict(list)
    for cell, asked in own.items():
        if cell not in theirs:
            others["it was not asked there"].append(cell)
        elif hides_in_essays(cell[0]) and not same_essays:
            others["its haystack was another one"].append(cell)
        elif list(map(_question, theirs[cell])) != list(map(_question, asked)):
            reason = "its questions were others, as with another tokenizer or another lm-eval"
            others[reason].append(cell)
        else:
            replies += theirs[cell]
    left_out = [f"{_named(cells)} ({reason})" for reason, cells in others.items()]
    if not replies:
        wrong = f"it was asked none of these questions: {'; '.join(left_out)}"
        remedy = "ask the base the same: its --tasks, --lengths, --haystack and tokenizer as here"
        raise_if_any([Problem(FIELD, given, wrong, remedy)])
    return replies, left_out


def _as_stored(question: RulerQuestion) -> dict[str, Any]:
    answers = list(question.document["outputs"])
    return {
        "task": question.task,
        "length": question.length,
        "tokens": len(question.ids),
        "answers": answers,
    }


def _by_cell(rows: Iterable[Mapping[str, Any]]) -> dict[Cell, list[Mapping[str, Any]]]:
    grouped: defaultdict[Cell, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["task"], row["length"]].append(row)
    return grouped


def _question(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what tells a question from others: those of another text have other answers or another size."""
    return row["tokens"], row["answers"]


def _named(cells: Sequence[Cell]) -> str:
    """Return ``vt at 4k and 8k, cwe at 4k``."""
    tasks: dict[str, list[str]] = {}
    for task, length in cells:
        tasks.setdefault(task, []).append(length_label(length))
    return ", ".join(f"{task} at {' and '.join(lengths)}" for task, lengths in tasks.items())
