"""RULER's figures for people: CSV, Markdown and a picture of tasks and lengths."""

from collections import defaultdict
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tape_ds import storage
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import length as length_label
from tape_ds.scoring.heat_maps import COLOURS, LINE, files
from tape_ds.scoring.plots import write_picture

FIELDS = ("task", "length", "samples", "score", "low", "high", "mean_tokens")
RULES = {
    "published": "RULER's rule (85.6 %, Llama2-7B's score at 4k)",
    "own": "the model's own rule (85 % of its score at the shortest length)",
}


def write(figures: Mapping[str, Any], folder: Path, title: str) -> list[Path]:
    """Write ``ruler.csv``, ``ruler.md`` and ``ruler.png`` into ``folder``."""
    csv_file, table_file, picture = files(folder, "ruler")
    fields = [*FIELDS]
    if "questions_per_text" in figures:
        fields.append("texts")
    rows = map(itemgetter(*fields), figures["cells"])
    storage.write_text(csv_file, storage.as_csv(fields, rows))
    storage.write_text(table_file, f"# {title}\n\n{summary(figures)}\n\n{table(figures)}\n")
    draw(figures, picture, title)
    return [csv_file, table_file, picture]


def summary(figures: Mapping[str, Any]) -> str:
    """Return the effective lengths, the differences from the base, and what the numbers compare with, as lines."""
    lines = []
    for name, rule in RULES.items():
        effective = figures["effective"][name]
        length = f"below {length_label(figures['lengths'][0]['length'])}"
        if effective["length"] is not None:
            length = length_label(effective["length"])
        probability = f"which reaches it with probability {effective['probability']:.0%}"
        lines.append(f"- Effective length by {rule}: {length}, {probability}")
    for row in figures.get("differences", ()):
        spread = f"{row['low']:+.1%} to {row['high']:+.1%}"
        lines.append(
            f"- {length_label(row['length'])}: {row['difference']:+.1%} ({spread}) from {figures['against']}"
        )
    for reason in figures.get("not_compared", ()):
        lines.append(f"- Not compared with {figures['against']}: {reason}")
    tasks = max(map(itemgetter("tasks"), figures["lengths"]))
    lines.append(f"- Asked: {tasks} of RULER's 13 tasks, essays from {figures['haystack']}")
    if "questions_per_text" in figures:
        questions = per_text(figures["questions_per_text"])
        lines.append(f"- {questions}; intervals are of texts, not of questions")
    if figures["not_asked"]:
        lines.append(f"- Not asked: {', '.join(figures['not_asked'])}")
    lines.append(
        "- Numbers with another haystack, other tasks or another form (base, chat) do not compare"
    )
    return "\n".join(lines)


def per_text(numbers: Mapping[str, int]) -> str:
    """Return how many questions each text of a task has, in words."""
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for task, number in numbers.items():
        groups[number].append(task)
    words = [f"{number} of {', '.join(groups[number])}" for number in sorted(groups, reverse=True)]
    return f"Questions about a text: {'; '.join(words)}"


def table(figures: Mapping[str, Any]) -> str:
    """Return the scores with their intervals, tasks down and lengths across."""
    rows: dict[str, list[str]] = {}
    tokens: defaultdict[int, list[float]] = defaultdict(list)
    lengths = _lengths(figures)
    for cell in figures["cells"]:
        # a task that was not asked at a length has a dash there
        row = rows.setdefault(cell["task"], [cell["task"], *["-"] * len(lengths)])
        row[1 + lengths.index(cell["length"])] = _share(cell["score"], cell)
        tokens[cell["length"]].append(cell["mean_tokens"])
    # over the tasks of a length
    means = ["mean"]
    prompts = ["prompt tokens, mean"]
    for mean in figures["lengths"]:
        of_tasks = tokens[mean["length"]]
        means.append(_share(mean["mean"], mean))
        prompts.append(f"{sum(of_tasks) / len(of_tasks):,.0f}")
    header = ["task (%)", *map(length_label, lengths)]
    return markdown_table(header, [*rows.values(), means, prompts])


def draw(figures: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw the scores; lines mark the effective lengths."""
    lengths = _lengths(figures)
    tasks = list(dict.fromkeys(map(itemgetter("task"), figures["cells"])))
    shares = np.full((len(tasks) + 1, len(lengths)), np.nan)
    for cell in figures["cells"]:
        shares[tasks.index(cell["task"]), lengths.index(cell["length"])] = cell["score"]
    shares[-1] = list(map(itemgetter("mean"), figures["lengths"]))
    figure = Figure(
        figsize=(4.2 + 0.8 * len(lengths), 2.4 + 0.4 * len(shares)), layout="constrained"
    )
    axes = figure.add_subplot(facecolor="0.8")
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(shares):
        # NaN: not asked
        shown = "-" if np.isnan(value) else f"{100 * value:.0f}"
        colour = "white" if value < 0.6 else "black"
        axes.text(column, row, shown, ha="center", va="center", color=colour)
    axes.axhline(len(tasks) - 0.5, color="white", lw=3)
    axes.set_xticks(range(len(lengths)), labels=list(map(length_label, lengths)))
    axes.set_yticks(range(len(shares)), labels=[*tasks, "mean"])
    axes.set_xlabel("length (tokens)")
    marks = []
    for name, whose, style in (("published", "RULER", "--"), ("own", "own", ":")):
        effective = figures["effective"][name]["length"]
        # after the column of that length; of none, before the first
        place = -0.5
        if effective is not None:
            place = lengths.index(effective) + 0.5
        label = f"effective length, {whose}'s rule"
        marks.append(
            axes.axvline(place, color=LINE, linestyle=style, lw=2.5, label=label, clip_on=False)
        )
    figure.legend(handles=marks, loc="outside lower center", fontsize="small")
    axes.set_title(title, fontsize="medium", wrap=True, parse_math=False)
    figure.colorbar(image, ax=axes, label="score", format="{x:.0%}")
    write_picture(figure, path)


def _share(value: float, interval: Mapping[str, Any]) -> str:
    return f"{100 * value:.1f} ({100 * interval['low']:.0f}-{100 * interval['high']:.0f})"


def _lengths(figures: Mapping[str, Any]) -> list[int]:
    return [row["length"] for row in figures["lengths"]]
