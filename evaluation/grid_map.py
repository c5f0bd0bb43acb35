"""Heat maps of exact match by the lengths of both operands, one panel for each model, as the paper's Figures 2, 5, 6.

What was trained is framed, and a title has the mean of the whole grid beside that of what lies beyond the frame. A cell
of which nothing was asked is grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tape_ds import storage
from tape_ds.scoring.arithmetic import Cell, Pair, as_cell, means

COLOURS = "cividis"
"""Even in lightness, and the same to colour-blind readers."""
FRAME = "#D55E00"
ACROSS = 4
"""Panels in a row."""


@dataclass(frozen=True)
class Grid:
    """What one model came to."""

    label: str
    cells: Sequence[Cell]
    trained: Pair
    sizes: tuple[str, str]
    """What the two lengths mean, first operand's first."""

    @classmethod
    def of(cls, label: str, figures: Mapping[str, Any]) -> Grid:
        """From the figures of ``python -m evaluation arithmetic``."""
        cells = [as_cell(each) for each in figures["cells"]]
        (first, second), (one, other) = figures["trained"], figures["sizes"]
        return cls(label, cells, (first, second), (one, other))

    @property
    def means(self) -> dict[str, float | None]:
        """Of each part of the grid, see :func:`tape_ds.scoring.arithmetic.means`."""
        return {name: mean.value for name, mean in means(self.cells, self.trained).items()}


def draw(grids: Sequence[Grid], path: Path, title: str) -> Path:
    """A panel for each grid, side by side, as a PNG at ``path``.

    Raises:
        ValueError: there is no grid, or one has no cells.
    """
    if not grids or not all(grid.cells for grid in grids):
        raise ValueError("no cells: nothing to draw")
    across = min(ACROSS, len(grids))
    down = math.ceil(len(grids) / across)
    figure = Figure(figsize=(1.5 + 3.3 * across, 0.6 + 3.8 * down), layout="compressed")
    FigureCanvasAgg(figure)
    panels: Sequence[Axes] = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes, grid in zip(panels, grids, strict=False):
        image = _panel(axes, grid)
    for axes in panels[len(grids) :]:
        axes.remove()
    figure.suptitle(title, fontsize="medium", wrap=True, parse_math=False)
    drawn = panels[: len(grids)]
    figure.colorbar(image, ax=drawn, pad=0.02, aspect=25, label="exact match", format=lambda share, _: f"{share:.0%}")
    storage.write_file(path, lambda part: figure.savefig(part, dpi=150, format="png"))
    return path


def _panel(axes: Axes, grid: Grid) -> AxesImage:
    """One grid: the first operand upwards, the second to the right."""
    last = max(cell.first for cell in grid.cells), max(cell.second for cell in grid.cells)
    shares = [[math.nan] * last[1] for _ in range(last[0])]
    for cell in grid.cells:
        shares[cell.first - 1][cell.second - 1] = math.nan if cell.rate is None else cell.rate
    axes.set_facecolor("0.8")
    edges = (0.5, last[1] + 0.5, 0.5, last[0] + 0.5)
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, origin="lower", extent=edges, interpolation="nearest")
    first, second = (min(pair) for pair in zip(grid.trained, last, strict=True))
    frame = Rectangle((0.5, 0.5), second, first, fill=False, edgecolor=FRAME, lw=2, linestyle="--", clip_on=False)
    frame.set_zorder(3)  # above the axes' own frame
    axes.add_patch(frame)
    axes.set(xlim=edges[:2], ylim=edges[2:], xlabel=grid.sizes[1], ylabel=grid.sizes[0])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    found = grid.means
    shown = f"{grid.label}\nall {percent(found['whole'])}, beyond the frame {percent(found['beyond'])}"
    axes.set_title(shown, fontsize="medium", parse_math=False)
    return image


def percent(share: float | None) -> str:
    """As tables and titles write a mean."""
    return "N/A" if share is None else f"{share:.1%}"
