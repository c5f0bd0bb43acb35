"""Results of passkeys and of generated tasks for people: CSV, Markdown, and heat maps as PNGs.

A cell of passkeys is a dict with ``length`` (tokens), ``depth`` (share of the filler before the key, 0 to 1; None if
keys are anywhere), ``trials``, ``correct`` (replies whose first integer is the key), ``correct_ids`` (that begin with
the key's token ids; None if unknown) and ``mean_tokens`` (of the prompts).
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tape_ds import storage
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import length as length_label
from tape_ds.numbers import number
from tape_ds.scoring.exact_match import AnswerCount
from tape_ds.scoring.plots import write_picture

COLOURS = "cividis"
"""Even in lightness, and the same to colour-blind readers."""
LINE = "#D55E00"
PASSKEY_FIELDS = ("length", "depth", "trials", "correct", "correct_ids", "mean_tokens")
PARTS = {
    "whole": "the whole grid",
    "trained": "trained lengths",
    "beyond": "beyond: either operand longer",
    "both_beyond": "both operands longer",
    "twice": "to twice the trained lengths, trained ones included (as published)",
}


def files(folder: Path, stem: str) -> list[Path]:
    """Return the table as CSV, the table as Markdown, and the picture."""
    return [folder / f"{stem}.{kind}" for kind in ("csv", "md", "png")]


def write_passkeys(
    cells: Sequence[Mapping[str, Any]], folder: Path, *, title: str, native_length: int | None
) -> list[Path]:
    """Write ``passkey.csv``, ``passkey.md`` and ``passkey.png`` into ``folder``."""
    csv_file, table_file, picture = files(folder, "passkey")
    rows = map(itemgetter(*PASSKEY_FIELDS), cells)
    storage.write_text(csv_file, storage.as_csv(PASSKEY_FIELDS, rows))
    storage.write_text(table_file, f"# {title}\n\n{passkey_table(cells)}")
    draw_passkeys(cells, picture, title=title, native_length=native_length)
    return [csv_file, table_file, picture]


def _grid(cells: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the cells in order, their shares and their counts; depths down, lengths across."""
    # keys that are anywhere come first, with no depth
    frame = pd.DataFrame(cells).sort_values(["depth", "length"], na_position="first")
    frame["share"] = frame["correct"] / frame["trials"]
    frame["count"] = frame["correct"].astype(str) + "/" + frame["trials"].astype(str)
    depths = frame["depth"].unique()
    shares = frame.pivot(index="depth", columns="length", values="share").reindex(depths)
    counts = frame.pivot(index="depth", columns="length", values="count").reindex(depths)
    counts.index = list(map(_depth_label, depths))
    return frame, shares, counts.fillna("-")


def _depth_label(depth: Any) -> str:
    if pd.isna(depth):
        return "anywhere"
    return f"{100 * depth:.3g}%"


def passkey_table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return found/asked by depth and length, with the sums of each length by both rules."""
    frame, _, counts = _grid(cells)
    rows = [[str(place), *row] for place, row in counts.iterrows()]
    all_ = ["all"]
    ids = ["all, by token ids"]
    tokens = ["prompt tokens, mean"]
    for _, column in frame.groupby("length"):
        trials = column["trials"].sum()
        all_.append(f"{column['correct'].sum()}/{trials}")
        by_ids = "-"
        # unknown where a tokenizer joins the key with its surroundings
        if not column["correct_ids"].isna().any():
            by_ids = f"{int(column['correct_ids'].sum())}/{trials}"
        ids.append(by_ids)
        tokens.append(f"{(column['mean_tokens'] * column['trials']).sum() / trials:,.0f}")
    # of a single depth the row of sums is that row again
    if len(rows) > 1:
        rows.append(all_)
    rows += [ids, tokens]
    header = ["depth", *map(length_label, sorted(frame["length"].unique()))]
    return markdown_table(header, rows) + "\n"


def draw_passkeys(
    cells: Sequence[Mapping[str, Any]], path: Path, *, title: str, native_length: int | None
) -> Path:
    """Draw the shares; a dashed line marks ``native_length``."""
    _, shares, counts = _grid(cells)
    depths = list(counts.index)
    lengths = list(shares.columns)
    figure = Figure(
        figsize=(3.4 + 0.8 * len(lengths), 1.9 + 0.55 * len(depths)), layout="constrained"
    )
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(shares.shape):
        # readable on dark and on light
        colour = "white" if shares.iat[row, column] < 0.6 else "black"
        axes.text(column, row, counts.iat[row, column], ha="center", va="center", color=colour)
    axes.set_xticks(range(len(lengths)), labels=list(map(length_label, lengths)))
    axes.set_yticks(range(len(depths)), labels=depths)
    # white lines between the cells
    axes.set_xticks(np.arange(len(lengths) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(depths) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=1)
    axes.tick_params(which="minor", length=0)
    axes.set(xlabel="length (tokens)", ylabel="depth of the key")
    axes.set_title(title, fontsize="medium", wrap=True, parse_math=False)
    if native_length is not None and native_length < lengths[-1]:
        inside = bisect.bisect_right(lengths, native_length)
        axes.axvline(inside - 0.5, color=LINE, linestyle="--", lw=2)
        axes.set_xlabel(f"length (tokens); dashed: native length {length_label(native_length)}")
    figure.colorbar(image, ax=axes, label="keys found", ticks=[0, 0.5, 1], format="{x:.0%}")
    return write_picture(figure, path)


def write_generated(figures: Mapping[str, Any], folder: Path, title: str) -> list[Path]:
    """Write CSV, Markdown and, of arithmetic, the picture into ``folder``."""
    if "cells" in figures:
        stem = "arithmetic"
        rows = figures["cells"]
        names = ["first", "second", "samples", "correct"]
    else:
        stem = "addressing"
        rows = figures["tests"]
        names = ["length", "kind", "rows", "answers", "correct", "chance"]
    csv_file, table_file, picture = files(folder, stem)
    storage.write_text(csv_file, storage.as_csv(names, map(itemgetter(*names), rows)))
    storage.write_text(table_file, f"# {title}\n\n{generated_summary(figures)}\n")
    if "cells" not in figures:
        return [csv_file, table_file]
    draw_generated(figures, picture, title)
    return [csv_file, table_file, picture]


def generated_summary(figures: Mapping[str, Any]) -> str:
    """Return a line for each test of addressing, or the means of the grid's parts and a remark on the model."""
    if "tests" in figures:
        counts = map(AnswerCount.from_dict, figures["tests"])
        return "\n".join(f"- {count.label}: {count}" for count in counts)
    lines = []
    for name, mean in figures["means"].items():
        lines.append([PARTS[name], number(mean["value"], ".1%"), f"{mean['cells']:,}"])
    first, second = figures["trained"]
    trained = f"{first}" if first == second else f"{first} and {second}"
    text = f"Exact match, trained to {trained}:\n\n{markdown_table(['mean over', 'right', 'cells'], lines)}"
    if figures.get("remark"):
        return f"{text}\n\nOf this model: {figures['remark']}."
    return text


def draw_generated(figures: Mapping[str, Any], path: Path, title: str) -> Path:
    """Draw the grid of arithmetic (the paper's Figures 2, 5, 6): the first operand upwards, the second to the right,
    trained lengths framed, cells without a sample grey."""
    cells = figures["cells"]
    sizes = figures["sizes"]
    last = (max(map(itemgetter("first"), cells)), max(map(itemgetter("second"), cells)))
    shares = np.full(last, math.nan)
    for cell in cells:
        if cell["samples"]:
            shares[cell["first"] - 1, cell["second"] - 1] = cell["correct"] / cell["samples"]
    figure = Figure(figsize=(4.8, 4.4), layout="compressed")
    axes = figure.add_subplot(facecolor="0.8")
    edges = (0.5, last[1] + 0.5, 0.5, last[0] + 0.5)
    image = axes.imshow(
        shares, cmap=COLOURS, vmin=0, vmax=1, origin="lower", extent=edges, interpolation="nearest"
    )
    first, second = map(min, figures["trained"], last)
    frame = Rectangle(
        (0.5, 0.5), second, first, fill=False, edgecolor=LINE, lw=2, linestyle="--", clip_on=False
    )
    # above the axes' own frame
    frame.set_zorder(3)
    axes.add_patch(frame)
    axes.set(xlim=edges[:2], ylim=edges[2:], xlabel=sizes[1], ylabel=sizes[0])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(
            MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        )
    whole = number(figures["means"]["whole"]["value"], ".1%")
    beyond = number(figures["means"]["beyond"]["value"], ".1%")
    axes.set_title(
        f"{figures['task']}\nall {whole}, beyond the frame {beyond}",
        fontsize="medium",
        parse_math=False,
    )
    figure.suptitle(title, fontsize="medium", wrap=True, parse_math=False)
    figure.colorbar(image, pad=0.02, aspect=25, label="exact match", format="{x:.0%}")
    return write_picture(figure, path)
