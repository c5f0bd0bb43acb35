"""Passkeys found by depth and length: as a picture, as CSV, and as a table for people.

A cell is a dict with ``length`` (tokens), ``depth`` (share of the filler before the key, 0 to 1; None where keys lie
anywhere), ``trials``, ``correct`` (replies whose first integer is the key), ``correct_ids`` (that begin with the key's
token ids; None where there are none) and ``mean_tokens`` (of the prompts).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tape_ds import storage
from tape_ds.markdown_table import markdown_table
from tape_ds.numbers import length as length_label

Cell = Mapping[str, Any]

FIELDS = ("length", "depth", "trials", "correct", "correct_ids", "mean_tokens")
COLOURS = "cividis"
"""Even in lightness, and the same to colour-blind readers."""


def write(cells: Sequence[Cell], folder: Path, *, title: str, native_length: int | None) -> list[Path]:
    """``passkey.png``, ``passkey.csv`` and ``passkey.md`` in ``folder``, each whole or not at all."""
    table = f"# {title}\n\n{markdown(cells)}"
    csv_file, table_file, picture = (folder / f"passkey.{kind}" for kind in ("csv", "md", "png"))
    storage.write_text(csv_file, storage.as_csv(FIELDS, [[cell[name] for name in FIELDS] for cell in cells]))
    storage.write_text(table_file, table)
    storage.write_file(picture, lambda path: draw(cells, path, title=title, native_length=native_length))
    return [csv_file, table_file, picture]


def _frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """Cells with ``share`` (0 to 1), and in words ``count`` (found of asked), in order."""
    frame = pd.DataFrame(cells).sort_values(["depth", "length"], na_position="first")
    frame["share"] = frame["correct"] / frame["trials"]
    frame["count"] = frame["correct"].astype(str) + "/" + frame["trials"].astype(str)
    return frame


def depth_label(depth: float | None) -> str:
    """Per cent of the filler."""
    return "anywhere" if depth is None or math.isnan(depth) else f"{100 * depth:.3g}%"


def _grid(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return depths down, lengths across."""
    wide = frame.pivot(index="depth", columns="length", values=name)
    return wide.reindex(frame["depth"].unique()).rename(index=depth_label)


def markdown(cells: Sequence[Cell]) -> str:
    """Return depths down, lengths across, found of asked in each cell; last the sums of each length, by both rules."""
    frame = _frame(cells)
    rows = [[str(place), *row] for place, row in _grid(frame, "count").fillna("-").iterrows()]
    all_, ids, tokens = ["all"], ["all, by token ids"], ["prompt tokens, mean"]
    for _, column in frame.groupby("length"):
        trials = column["trials"].sum()
        all_.append(f"{column['correct'].sum()}/{trials}")
        ids.append("-" if column["correct_ids"].isna().any() else f"{int(column['correct_ids'].sum())}/{trials}")
        tokens.append(f"{(column['mean_tokens'] * column['trials']).sum() / trials:,.0f}")
    rows += ([all_] if len(rows) > 1 else []) + [ids, tokens]
    return markdown_table(["depth", *map(length_label, sorted(frame["length"].unique()))], rows) + "\n"


def draw(cells: Sequence[Cell], path: Path, *, title: str, native_length: int | None) -> Path:
    """Return the heat map as a PNG; a dashed line stands where lengths go beyond ``native_length``."""
    frame = _frame(cells)
    shares, counts = _grid(frame, "share"), _grid(frame, "count").fillna("-")
    depths, lengths = list(shares.index), list(shares.columns)
    figure = Figure(figsize=(3.4 + 0.8 * len(lengths), 1.9 + 0.55 * len(depths)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for row in range(len(depths)):
        for column in range(len(lengths)):
            colour = "white" if shares.iat[row, column] < 0.6 else "black"
            axes.text(column, row, counts.iat[row, column], ha="center", va="center", color=colour)
    axes.set_xticks(range(len(lengths)), labels=[length_label(length) for length in lengths])
    axes.set_yticks(range(len(depths)), labels=depths)
    axes.set_xticks([column + 0.5 for column in range(len(lengths) - 1)], minor=True)
    axes.set_yticks([row + 0.5 for row in range(len(depths) - 1)], minor=True)
    axes.grid(which="minor", color="white", lw=1)
    axes.tick_params(which="minor", length=0)
    axes.set(xlabel="length (tokens)", ylabel="depth of the key")
    axes.set_title(title, fontsize="medium", wrap=True, parse_math=False)
    inside = sum(native_length is None or length <= native_length for length in lengths)
    if native_length is not None and inside < len(lengths):
        axes.axvline(inside - 0.5, color="#D55E00", linestyle="--", lw=2)
        axes.set_xlabel(f"length (tokens); dashed: native length {length_label(native_length)}")
    figure.colorbar(image, ax=axes, label="keys found", ticks=[0, 0.5, 1], format=lambda share, _: f"{share:.0%}")
    figure.savefig(path, dpi=150, format="png")
    return path
