"""Results of ``tape-ds evaluate arithmetic`` for people: as CSV, in words, and of arithmetic the grid as a picture
(the paper's Figures 2, 5, 6)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tape_ds import storage
from tape_ds.markdown_table import markdown_table
from tape_ds.scoring.exact_match import Answered

COLOURS = "cividis"
"""Even in lightness, and the same to colour-blind readers."""
FRAME = "#D55E00"
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
    """Write CSV, Markdown and, of arithmetic, the picture into ``folder``, each whole or not at all."""
    is_grid = "cells" in figures
    stem, rows = ("arithmetic", figures["cells"]) if is_grid else ("addressing", figures["tests"])
    names = ["first", "second", "samples", "correct"]
    if not is_grid:
        names = ["length", "kind", "rows", "answers", "correct", "chance"]
    csv_file, table_file, picture = (folder / f"{stem}.{kind}" for kind in ("csv", "md", "png"))
    storage.write_text(csv_file, storage.as_csv(names, [[row[name] for name in names] for row in rows]))
    wrong = [each for row in rows for each in row.get("wrong", ())][:SHOWN]
    lines = [f"- `{each['prompt']}{each['reply']}`, right: `{each['answer']}`" for each in wrong]
    shown = "\n\nWrong, shortest first:\n\n" + "\n".join(lines) if wrong else ""
    storage.write_text(table_file, f"# {title}\n\n{summary(figures)}{shown}\n")
    if not is_grid:
        return [csv_file, table_file]
    draw(figures, picture, title)
    return [csv_file, table_file, picture]


def summary(figures: Mapping[str, Any]) -> str:
    """Return a line for each test, or the means of the grid's parts and what to know of them."""
    if "tests" in figures:
        return "\n".join(f"- {each.label}: {each}" for each in map(Answered.from_dict, figures["tests"]))
    lines = [[PARTS[name], percent(mean["value"]), f"{mean['cells']:,}"] for name, mean in figures["means"].items()]
    first, second = figures["trained"]
    trained = f"{first}" if first == second else f"{first} and {second}"
    text = f"Exact match, trained to {trained}:\n\n{markdown_table(['mean over', 'right', 'cells'], lines)}"
    return f"{text}\n\nOf this model: {figures['remark']}." if figures.get("remark") else text


def draw(figures: Mapping[str, Any], path: Path, title: str) -> Path:
    """Return the figures as a PNG: the first operand upwards, the second to the right. What was trained is framed, and
    a cell of which nothing was asked is grey."""
    cells, sizes = figures["cells"], figures["sizes"]
    last = [max(cell[name] for cell in cells) for name in ("first", "second")]
    shares = [[math.nan] * last[1] for _ in range(last[0])]
    for cell in cells:
        if cell["samples"]:
            shares[cell["first"] - 1][cell["second"] - 1] = cell["correct"] / cell["samples"]
    figure = Figure(figsize=(4.8, 4.4), layout="compressed")
    axes = figure.add_subplot(facecolor="0.8")
    edges = (0.5, last[1] + 0.5, 0.5, last[0] + 0.5)
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, origin="lower", extent=edges, interpolation="nearest")
    first, second = map(min, figures["trained"], last)
    frame = Rectangle((0.5, 0.5), second, first, fill=False, edgecolor=FRAME, lw=2, linestyle="--", clip_on=False)
    frame.set_zorder(3)  # above the axes' own frame
    axes.add_patch(frame)
    axes.set(xlim=edges[:2], ylim=edges[2:], xlabel=sizes[1], ylabel=sizes[0])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    whole, beyond = (percent(figures["means"][name]["value"]) for name in ("whole", "beyond"))
    axes.set_title(f"{figures['task']}\nall {whole}, beyond the frame {beyond}", fontsize="medium", parse_math=False)
    figure.suptitle(title, fontsize="medium", wrap=True, parse_math=False)
    figure.colorbar(image, pad=0.02, aspect=25, label="exact match", format=lambda share, _: f"{share:.0%}")
    storage.write_file(path, lambda part: figure.savefig(part, dpi=150, format="png"))
    return path


def percent(share: float | None) -> str:
    """As tables and titles write a mean."""
    return "N/A" if share is None else f"{share:.1%}"
