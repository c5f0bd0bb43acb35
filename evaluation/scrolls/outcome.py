"""What an evaluation's texts are worth: scores, what was cut to get them, the official scorer's files, and a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.scrolls import official
from tape_ds.data.scrolls.datasets import Dataset
from tape_ds.data.scrolls.examples import Example
from tape_ds.markdown_table import markdown_table


@dataclass(frozen=True)
class Asked:
    """A data set and what of it is asked."""

    dataset: Dataset
    examples: tuple[Example, ...]
    """All of them with reference answers, or none."""

    @property
    def answered(self) -> bool:
        """Whether the texts can be scored."""
        return bool(self.examples[0].outputs)


def parts(asked: Asked) -> dict[str, list[Example]]:
    """What a data set is scored on, by the name of the score: all of it, and for quality its hard questions too."""
    found = {asked.dataset.name: list(asked.examples)}
    hard = official.hard(asked.examples) if asked.dataset.name == official.WHOLE else []
    return found | ({official.HARD: hard} if hard else {})


def summarise(
    asked: Asked, written: Mapping[str, Mapping[str, Any]], native_length: int | None
) -> dict[str, dict[str, Any]]:
    """A data set's scores with what was cut to get them, by the name of the score; without answers, None for each.

    ``native_length``: tokens that the model is made for, where that is known.
    """
    texts = {name: entry["text"] for name, entry in written.items()}
    found = {}
    for name, rows in parts(asked).items():
        score = official.score(name, texts, rows) if asked.answered else None
        entries = [written[row.id] for row in rows]
        cut = [entry["cut_tokens"] for entry in entries]
        tokens = [entry["prompt_tokens"] + entry["new_tokens"] for entry in entries]
        found[name] = {
            "metric": asked.dataset.metric,
            "score": score.score if score is not None else None,
            "standard_error": score.standard_error if score is not None else None,
            "parts": score.parts if score is not None else None,
            "examples": len(rows),
            "cut_examples": sum(each > 0 for each in cut),
            "cut_tokens": sum(cut),
            "beyond_native": sum(each > native_length for each in tokens) if native_length is not None else None,
            "unfinished": sum(not entry["ended"] for entry in entries),
            "mean_prediction_characters": official.mean_characters([texts[row.id] for row in rows]),
        }
    return found


def store(asked: Asked, written: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write the official scorer's files; without answers, the texts alone."""
    texts = {row.id: written[row.id]["text"] for row in asked.examples}
    files = [official.write(texts, folder / f"{asked.dataset.name}.json")]
    for name, rows in parts(asked).items() if asked.answered else ():
        content = official.metrics_file(name, official.score(name, texts, rows), texts, rows)
        files.append(official.write(content, folder / f"{name}_metrics.json", indent=4))
    return files


def table(figures: Mapping[str, Any], max_tokens: int) -> str:
    """The scores for people, and what was cut."""
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
