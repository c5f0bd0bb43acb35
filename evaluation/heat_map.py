"""Passkeys found by depth and length: as a picture, as CSV, and as a table for people.

A cell is a dict with ``length`` (tokens), ``depth`` (share of the filler before the key, 0 to 1; None where keys lie
anywhere), ``trials``, ``correct`` (replies whose first integer is the key), ``correct_ids`` (that begin with the key's
token ids; None where there are none) and ``mean_tokens`` (of the prompts).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evaluation.pages.numbers import length as length_label
from tape_ds import storage
from tape_ds.markdown_table import markdown_table

Cell = Mapping[str, Any]

FIELDS = ("length", "depth", "trials", "correct", "correct_ids", "mean_tokens")
COLOURS = "cividis"
"""Even in lightness, and the same to colour-blind readers."""


def write(cells: Sequence[Cell], folder: Path, *, title: str, native_length: int | None) -> list[Path]:
    """``passkey.png``, ``passkey.csv`` and ``passkey.md`` in ``folder``, each whole or not at all."""
    table = f"# {title}\n\n{markdown(cells)}"
    csv_file, table_file, picture = (folder / f"passkey.{kind}" for kind in ("csv", "md", "png"))
    storage.write_text(csv_file, to_csv(cells))
    storage.write_text(table_file, table)
    storage.write_file(picture, lambda path: draw(cells, path, title=title, native_length=native_length))
    return [csv_file, table_file, picture]


def to_csv(cells: Sequence[Cell]) -> str:
    """A line per cell; an empty field where there is nothing."""
    return storage.as_csv(FIELDS, [[cell[name] for name in FIELDS] for cell in cells])


def markdown(cells: Sequence[Cell]) -> str:
    """Depths down, lengths across, found of asked in each cell; last the sums of each length, by both rules."""
    lengths, depths, found = _arrange(cells)
    rows = [[depth_label(depth), *(_share(found.get((length, depth))) for length in lengths)] for depth in depths]
    sums = [_sum(cells, length) for length in lengths]
    if len(depths) > 1:
        rows.append(["all", *map(_share, sums)])
    rows.append(["all, by token ids", *(_share(each, "correct_ids") for each in sums)])
    rows.append(["prompt tokens, mean", *(f"{each['mean_tokens']:,.0f}" for each in sums)])
    return markdown_table(["depth", *map(length_label, lengths)], rows) + "\n"


def draw(cells: Sequence[Cell], path: Path, *, title: str, native_length: int | None) -> Path:
    """The heat map as a PNG; a dashed line stands where lengths go beyond ``native_length``.

    Raises:
        ValueError: there are no cells.
    """
    lengths, depths, found = _arrange(cells)
    if not cells:
        raise ValueError("no cells: nothing to draw")
    shares = [[_rate(found.get((length, depth))) for length in lengths] for depth in depths]
    figure = Figure(figsize=(3.4 + 0.8 * len(lengths), 1.9 + 0.55 * len(depths)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    for row, depth in enumerate(depths):
        for column, length in enumerate(lengths):
            dark = shares[row][column] < 0.6
            label = _share(found.get((length, depth)))
            axes.text(column, row, label, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(lengths)), labels=[length_label(length) for length in lengths])
    axes.set_yticks(range(len(depths)), labels=[depth_label(depth) for depth in depths])
    axes.set_xticks([column + 0.5 for column in range(len(lengths) - 1)], minor=True)
    axes.set_yticks([row + 0.5 for row in range(len(depths) - 1)], minor=True)
    axes.grid(which="minor", color="white", lw=1)
    axes.tick_params(which="minor", length=0)
    axes.set(xlabel="length (tokens)", ylabel="depth of the key")
    axes.set_title(title, fontsize="medium", wrap=True, parse_math=False)
    beyond = [column for column, length in enumerate(lengths) if native_length is not None and length > native_length]
    if beyond and native_length is not None:
        axes.axvline(beyond[0] - 0.5, color="#D55E00", linestyle="--", lw=2)
        axes.set_xlabel(f"length (tokens); dashed: native length {length_label(native_length)}")
    figure.colorbar(image, ax=axes, label="keys found", ticks=[0, 0.5, 1], format=lambda share, _: f"{share:.0%}")
    figure.savefig(path, dpi=150, format="png")
    return path


def depth_label(depth: float | None) -> str:
    """Per cent of the filler."""
    return "anywhere" if depth is None else f"{100 * depth:.3g}%"


def _arrange(cells: Sequence[Cell]) -> tuple[list[int], list[float | None], dict[tuple[int, float | None], Cell]]:
    """Lengths and depths, ascending, and the cell of each pair."""
    lengths = sorted({cell["length"] for cell in cells})
    depths = sorted({cell["depth"] for cell in cells}, key=lambda depth: -1 if depth is None else depth)
    return lengths, depths, {(cell["length"], cell["depth"]): cell for cell in cells}


def _sum(cells: Sequence[Cell], length: int) -> Cell:
    """All cells of a length as one."""
    column = [cell for cell in cells if cell["length"] == length]
    known = all(cell["correct_ids"] is not None for cell in column)
    trials = sum(cell["trials"] for cell in column)
    return {
        "trials": trials,
        "correct": sum(cell["correct"] for cell in column),
        "correct_ids": sum(cell["correct_ids"] for cell in column) if known else None,
        "mean_tokens": sum(cell["mean_tokens"] * cell["trials"] for cell in column) / trials,
    }


def _share(cell: Cell | None, name: str = "correct") -> str:
    return "-" if cell is None or cell[name] is None else f"{cell[name]}/{cell['trials']}"


def _rate(cell: Cell | None) -> float:
    """0 to 1; NaN leaves a cell blank."""
    return float("nan") if cell is None else cell["correct"] / cell["trials"]
