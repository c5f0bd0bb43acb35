"""RULER's figures for people: CSV, Markdown and a picture of tasks and lengths."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tape_ds import storage
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import length as length_label
from tape_ds.scoring.heat_maps import COLOURS, LINE, files

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
    rows = [[cell[name] for name in fields] for cell in figures["cells"]]
    storage.write_text(csv_file, storage.as_csv(fields, rows))
    storage.write_text(table_file, f"# {title}\n\n{summary(figures)}\n\n{table(figures)}\n")
    draw(figures, picture, title)
    return [csv_file, table_file, picture]


def summary(figures: Mapping[str, Any]) -> str:
    """Return the effective lengths, the differences from the base, and what the numbers compare with, as lines."""
    lines = []
    for name, rule in RULES.items():
        found = figures["effective"][name]
        probability = f"{found['probability']:.0%}"
        if found["length"] is None:
            shortest = length_label(figures["lengths"][0]["length"])
            lines.append(
                f"- Effective length by {rule}: below {shortest}, which reaches it with probability {probability}"
            )
        else:
            length = length_label(found["length"])
            lines.append(
                f"- Effective length by {rule}: {length}, which reaches it with probability {probability}"
            )
    for row in figures.get("differences", ()):
        spread = f"{row['low']:+.1%} to {row['high']:+.1%}"
        lines.append(
            f"- {length_label(row['length'])}: {row['difference']:+.1%} ({spread}) from {figures['against']}"
        )
    lines += [
        f"- Not compared with {figures['against']}: {each}"
        for each in figures.get("not_compared", ())
    ]
    tasks = max(each["tasks"] for each in figures["lengths"])
    lines.append(f"- Asked: {tasks} of RULER's 13 tasks, essays from {figures['haystack']}")
    if "questions_per_text" in figures:
        lines.append(
            f"- {per_text(figures['questions_per_text'])}; intervals are of texts, not of questions"
        )
    if figures["not_asked"]:
        lines.append(f"- Not asked: {', '.join(figures['not_asked'])}")
    lines.append(
        "- Numbers with another haystack, other tasks or another form (base, chat) do not compare"
    )
    return "\n".join(lines)


def per_text(numbers: Mapping[str, int]) -> str:
    """Return how many questions each text of a task has, in words."""
    found = []
    for number in sorted(set(numbers.values()), reverse=True):
        tasks = [task for task in numbers if numbers[task] == number]
        found.append(f"{number} of {', '.join(tasks)}")
    return f"Questions about a text: {'; '.join(found)}"


def table(figures: Mapping[str, Any]) -> str:
    """Return the scores with their intervals, tasks down and lengths across."""
    lengths = [each["length"] for each in figures["lengths"]]
    cells = {(cell["task"], cell["length"]): cell for cell in figures["cells"]}
    rows = []
    for task in dict.fromkeys(cell["task"] for cell in figures["cells"]):
        row = [task]
        for length in lengths:
            cell = cells.get((task, length))
            row.append("-" if cell is None else _share(cell["score"], cell))
        rows.append(row)
    rows.append(["mean", *(_share(each["mean"], each) for each in figures["lengths"])])
    tokens = ["prompt tokens, mean"]
    for length in lengths:
        of_tasks = [cell["mean_tokens"] for cell in figures["cells"] if cell["length"] == length]
        tokens.append(f"{sum(of_tasks) / len(of_tasks):,.0f}")
    rows.append(tokens)
    return markdown_table(["task (%)", *map(length_label, lengths)], rows)


def draw(figures: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw the scores; lines mark the effective lengths."""
    lengths = [each["length"] for each in figures["lengths"]]
    tasks = list(dict.fromkeys(cell["task"] for cell in figures["cells"]))
    shares = [[float("nan")] * len(lengths) for _ in (*tasks, "mean")]
    for cell in figures["cells"]:
        shares[tasks.index(cell["task"])][lengths.index(cell["length"])] = cell["score"]
    shares[-1] = [each["mean"] for each in figures["lengths"]]
    figure = Figure(
        figsize=(4.2 + 0.8 * len(lengths), 2.4 + 0.4 * len(shares)), layout="constrained"
    )
    axes = figure.add_subplot(facecolor="0.8")
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for row, values in enumerate(shares):
        for column, value in enumerate(values):
            shown = "-" if value != value else f"{100 * value:.0f}"
            axes.text(
                column,
                row,
                shown,
                ha="center",
                va="center",
                color="white" if value < 0.6 else "black",
            )
    axes.axhline(len(tasks) - 0.5, color="white", lw=3)
    axes.set_xticks(range(len(lengths)), labels=[length_label(length) for length in lengths])
    axes.set_yticks(range(len(shares)), labels=[*tasks, "mean"])
    axes.set_xlabel("length (tokens)")
    marks = []
    for name, style in (("published", "--"), ("own", ":")):
        effective = figures["effective"][name]["length"]
        place = -0.5 if effective is None else lengths.index(effective) + 0.5
        label = f"effective length, {'RULER' if name == 'published' else 'own'}'s rule"
        marks.append(
            axes.axvline(place, color=LINE, linestyle=style, lw=2.5, label=label, clip_on=False)
        )
    figure.legend(handles=marks, loc="outside lower center", fontsize="small")
    axes.set_title(title, fontsize="medium", wrap=True, parse_math=False)
    figure.colorbar(image, ax=axes, label="score", format=lambda share, _: f"{share:.0%}")
    storage.write_file(path, lambda part: figure.savefig(part, dpi=150, format="png"))


def _share(value: float, interval: Mapping[str, Any]) -> str:
    return f"{100 * value:.1f} ({100 * interval['low']:.0f}-{100 * interval['high']:.0f})"
