"""What an evaluation's texts are worth: scores, what was cut to get them, the official scorer's files, and a table."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.scrolls import official
from tape_ds import storage
from tape_ds.data.scrolls.datasets import Dataset
from tape_ds.data.scrolls.examples import Example
from tape_ds.markdown_table import markdown_table
from tape_ds.scoring import text_overlap
from tape_ds.scoring.text_overlap import OverlapScore


@dataclass(frozen=True)
class AskedSplit:
    """A data set and what of it is asked."""

    dataset: Dataset
    examples: tuple[Example, ...]
    """All of them with reference answers, or none."""

    @property
    def answered(self) -> bool:
        """Whether the texts can be scored."""
        return bool(self.examples[0].outputs)


Scores = Mapping[str, tuple[Sequence[Example], OverlapScore | None]]
"""By the name of a score, the questions that it is over, and what it is; None without answers."""


def scores(asked: AskedSplit, texts: Mapping[str, str]) -> Scores:
    """Return those of a data set's texts: of all of them, and for quality of its hard questions, too."""
    parts = {asked.dataset.name: list(asked.examples)}
    if hard := [example for example in asked.examples if example.hard]:
        parts[official.HARD] = hard
    found = {}
    for name, rows in parts.items():
        pairs = [texts[row.id] for row in rows], [row.outputs for row in rows]
        found[name] = rows, text_overlap.score(asked.dataset.metric, *pairs) if asked.answered else None
    return found


def summarise(
    found: Scores, metric: str, written: Mapping[str, Mapping[str, Any]], native_length: int | None
) -> dict[str, dict[str, Any]]:
    """Return scores with what was cut to get them, by their names.

    ``native_length``: tokens that the model is made for, where that is known.
    """
    summary = {}
    for name, (rows, score) in found.items():
        entries = [written[row.id] for row in rows]
        tokens = [entry["prompt_tokens"] + entry["new_tokens"] for entry in entries]
        summary[name] = {
            "metric": metric,
            "score": score and score.score,
            "standard_error": score and score.standard_error,
            "parts": score and score.parts,
            "examples": len(rows),
            "cut_examples": sum(entry["cut_tokens"] > 0 for entry in entries),
            "cut_tokens": sum(entry["cut_tokens"] for entry in entries),
            "beyond_native": sum(each > native_length for each in tokens) if native_length is not None else None,
            "unfinished": sum(not entry["ended"] for entry in entries),
            "mean_prediction_characters": statistics.fmean(len(entry["text"]) for entry in entries),
        }
    return summary


def store(found: Scores, dataset: str, texts: Mapping[str, str], folder: Path) -> None:
    """Write the official scorer's files; without answers, the texts alone."""
    storage.write_text(folder / f"{dataset}.json", json.dumps(texts) + "\n")
    for name, (rows, score) in found.items():
        if score is not None:
            content = official.metrics_file(name, score, [texts[row.id] for row in rows])
            storage.write_text(folder / f"{name}_metrics.json", json.dumps(content, indent=4) + "\n")


def table(figures: Mapping[str, Any], max_tokens: int) -> str:
    """Return the scores for people, and what was cut."""
    rows, notes = [], []
    for name, entry in figures["datasets"].items():
        error = "" if entry["standard_error"] is None else f"{entry['standard_error']:.2f}"
        score = "not scored" if entry["score"] is None else f"{entry['score']:.2f}"
        counts = (f"{entry['examples']:,}", f"{entry['mean_prediction_characters']:,.0f}")
        rows.append([name, entry["metric"], score, error, *counts])
        remarks = {
            "cut_examples": f"prompts were cut to fit into {max_tokens:,} tokens with their answers, "
            f"by {entry['cut_tokens']:,} tokens together",
            "unfinished": "texts reached their limit unended",
            "beyond_native": "prompts with their texts are longer than what the model is made for",
        }
        for kind, remark in remarks.items():
            if entry[kind]:
                notes.append(f"{name}: {entry[kind]:,} of {entry['examples']:,} {remark}")
    if any(entry["score"] is None for entry in figures["datasets"].values()):
        notes.append(f"the split {figures['split']} has no reference answers: texts are written, none is scored")
    head = [f"SCROLLS, {figures['split']}", "metric", "score", "+-", "examples", "characters"]
    return "\n".join(["", markdown_table(head, rows, "llr"), "", *notes])
