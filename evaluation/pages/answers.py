"""A page of what several checkpoints answered to the same questions."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.pages import numbers
from evaluation.pages.parts import Best, Head, Note, Page, PageSection, PageTable, Part
from evaluation.pages.tables import METRICS

SHOWN = 400
"""Characters of a question or a text; the stored result has all of them."""


def page(figures: Mapping[str, Any], command: Sequence[str]) -> Page:
    """Return the figures of ``scrolls compare`` as a page: scores over everything, then one table for each question."""
    metrics, scores = figures["metrics"], figures["scores"]
    count, all_ = len(figures["questions"]), next(iter(scores.values()))["examples"]
    which = f"{count} of the {all_:,} questions that were answered"
    rows = []
    for name, each in scores.items():
        cells = [numbers.measured(each[m]["score"], each[m]["standard_error"], 2) for m in metrics]
        rows.append((name, [*cells, f"{each['examples']:,}"]))
    heads = [Head(METRICS[metric]) for metric in metrics]
    caption = "Over all questions answered, 0 to 100; higher is better; standard errors behind ±"
    parts: list[Part] = [PageTable(caption, [Head("checkpoint"), *heads, Head("questions")], rows, numeric=True)]
    unknown = [name for name, each in scores.items() if not each["recorded"]]
    parts += [Note(f"How its prompts were made is not recorded: {name}.", loud=True) for name in unknown]
    questions = [_question(number, each, metrics) for number, each in enumerate(figures["questions"], 1)]
    sections = [PageSection("All questions", parts), *questions]
    sections.append(PageSection("Where this comes from", [Note(shlex.join(command))]))
    intro = f"{figures['dataset']} of SCROLLS, {figures['split']} split: {which}."
    return Page("Answers side by side", intro, sections)


def summary(figures: Mapping[str, Any]) -> str:
    """Return the scores in lines."""
    lines = []
    for name, scores in figures["scores"].items():
        scored = [f"{METRICS[metric]} {scores[metric]['score']:.2f}" for metric in figures["metrics"]]
        lines.append(f"{name}: {', '.join(scored)} over {scores['examples']:,} questions")
    return "\n".join(lines)


def _question(number: int, asked: Mapping[str, Any], metrics: Sequence[str]) -> PageSection:
    """Exact match is yes or no, the others are percent; the best of all is marked where they differ."""
    rows = []
    for name, each in asked["answers"].items():
        cells = [cut(each["text"]) or "(nothing)"]
        for metric in metrics:
            every = {answer[metric] for answer in asked["answers"].values()}
            text = f"{each[metric]:.1f}" if metric != "exact_match" else "✓" if each[metric] else "✗"
            cells.append(Best(text) if len(every) > 1 and each[metric] == max(every) else text)
        rows.append((name, cells))
    heads = [Head("checkpoint"), Head("answer"), *(Head(METRICS[metric]) for metric in metrics)]
    right = Note(f"Right: {' / '.join(f'“{cut(each)}”' for each in asked['references'])}")
    table = PageTable(f"Answers to {asked['id']}", heads, rows)
    return PageSection(f"Question {number}", [Note(cut(asked["question"])), right, table])


def cut(text: str) -> str:
    """On one line, the first of many characters."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]} … ({len(line) - SHOWN:,} more characters)"
