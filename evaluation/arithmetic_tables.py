"""The grid of an arithmetic evaluation: as a picture, as CSV, and as tables for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation import grid_map
from evaluation.grid_map import percent
from tape_ds import storage
from tape_ds.markdown_table import markdown_table

SHOWN = 5
"""Wrong answers in the table for people."""
PARTS = {
    "whole": "the whole grid",
    "trained": "trained lengths",
    "beyond": "beyond: either operand longer",
    "both_beyond": "both operands longer",
    "twice": "to twice the trained lengths, trained ones among them (as published)",
}


def write(figures: Mapping[str, Any], folder: Path, title: str) -> list[Path]:
    """``arithmetic.png``, ``arithmetic.csv`` and ``arithmetic.md`` in ``folder``, each whole or not at all."""
    csv_file, table_file, picture = (folder / f"arithmetic.{kind}" for kind in ("csv", "md", "png"))
    names = ("first", "second", "samples", "correct")
    storage.write_text(csv_file, storage.as_csv(names, [[cell[name] for name in names] for cell in figures["cells"]]))
    storage.write_text(table_file, f"# {title}\n\n{markdown(figures)}")
    grid_map.draw(figures, picture, title)
    return [csv_file, table_file, picture]


def markdown(figures: Mapping[str, Any]) -> str:
    """The means, and the first wrong answers; the grid is in the picture and in the CSV."""
    parts = [summary(figures)]
    wrong = [each for cell in figures["cells"] for each in cell["wrong"]][:SHOWN]
    if wrong:
        lines = [f"- `{each['prompt']}{each['reply']}`, right: `{each['answer']}`" for each in wrong]
        parts.append("Wrong, shortest first:\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def summary(figures: Mapping[str, Any]) -> str:
    """The means of the grid's parts, and what to know of them."""
    lines = [[PARTS[name], percent(mean["value"]), f"{mean['cells']:,}"] for name, mean in figures["means"].items()]
    first, second = figures["trained"]
    trained = f"{first}" if first == second else f"{first} and {second}"
    text = f"Exact match, trained to {trained}:\n\n{markdown_table(['mean over', 'right', 'cells'], lines)}"
    return f"{text}\n\nOf this model: {figures['remark']}." if figures.get("remark") else text
