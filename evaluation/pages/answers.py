"""A page of what several checkpoints answered to the same questions."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.pages import numbers
from evaluation.pages.parts import Best, Head, Note, Page, Part, Section, Table

NAMES = {"exact_match": "exact match", "f1": "F1", "rouge": "ROUGE, geometric mean"}
SHOWN = 400
"""Characters of a question or a text; the stored result has all of them."""


def page(figures: Mapping[str, Any], command: Sequence[str]) -> Page:
    """The figures of ``scrolls compare`` as a page: scores over everything, then one table for each question."""
    count, all_ = len(figures["questions"]), next(iter(figures["scores"].values()))["examples"]
    which = f"{count} of the {all_:,} questions that were answered"
    intro = f"{figures['dataset']} of SCROLLS, {figures['split']} split: {which}."
    sections = [Section("All questions", _scores(figures))]
    sections += [_question(number, each, figures) for number, each in enumerate(figures["questions"], 1)]
    sections.append(Section("Where this comes from", [Note(shlex.join(command))]))
    return Page("Answers side by side", intro, sections)


def summary(figures: Mapping[str, Any]) -> str:
    """The scores in lines."""
    lines = []
    for name, scores in figures["scores"].items():
        told = [f"{NAMES[metric]} {scores[metric]['score']:.2f}" for metric in figures["metrics"]]
        lines.append(f"{name}: {', '.join(told)} over {scores['examples']:,} questions")
    return "\n".join(lines)


def _scores(figures: Mapping[str, Any]) -> list[Part]:
    metrics = figures["metrics"]
    rows = []
    for name, scores in figures["scores"].items():
        cells = [numbers.measured(scores[m]["score"], scores[m]["standard_error"], 2) for m in metrics]
        rows.append((name, [*cells, f"{scores['examples']:,}"]))
    heads = [Head("checkpoint"), *(Head(NAMES[metric]) for metric in metrics), Head("questions")]
    caption = "Over all questions answered, 0 to 100; higher is better; standard errors behind ±"
    unknown = [name for name, scores in figures["scores"].items() if not scores["recorded"]]
    notes = [Note(f"How its prompts were made is not recorded: {name}.", loud=True) for name in unknown]
    return [Table(caption, heads, rows, numeric=True), *notes]


def _question(number: int, asked: Mapping[str, Any], figures: Mapping[str, Any]) -> Section:
    metrics = figures["metrics"]
    every = {m: {each[m] for each in asked["answers"].values()} for m in metrics}
    rows = [
        (name, [cut(each["text"]) or "(nothing)", *(_worth(each[m], m, every[m]) for m in metrics)])
        for name, each in asked["answers"].items()
    ]
    heads = [Head("checkpoint"), Head("answer"), *(Head(NAMES[metric]) for metric in metrics)]
    references = " / ".join(f"“{cut(each)}”" for each in asked["references"])
    told: list[Part] = [Note(cut(asked["question"])), Note(f"Right: {references}")]
    return Section(f"Question {number}", [*told, Table(f"Answers to {asked['id']}", heads, rows)])


def _worth(value: float, metric: str, every: set[float]) -> str:
    """Exact match is yes or no; the others are percent. The best of all is marked where they differ."""
    text = ("✓" if value else "✗") if metric == "exact_match" else f"{value:.1f}"
    return Best(text) if len(every) > 1 and value == max(every) else text


def cut(text: str) -> str:
    """On one line, the first of many characters."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]} … ({len(line) - SHOWN:,} more characters)"
