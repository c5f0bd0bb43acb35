"""A heat map of exact match by the lengths of both operands, as the paper's Figures 2, 5, 6.

What was trained is framed, and the title has the mean of the whole grid beside that of what lies beyond the frame. A
cell of which nothing was asked is grey.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tape_ds import storage

COLOURS = "cividis"
"""Even in lightness, and the same to colour-blind readers."""
FRAME = "#D55E00"


def draw(figures: Mapping[str, Any], path: Path, title: str) -> Path:
    """The figures of ``python -m evaluation arithmetic`` as a PNG: the first operand upwards, the second to the right.

    Raises:
        ValueError: there are no cells.
    """
    cells, sizes = figures["cells"], figures["sizes"]
    if not cells:
        raise ValueError("no cells: nothing to draw")
    last = [max(cell[name] for cell in cells) for name in ("first", "second")]
    shares = [[math.nan] * last[1] for _ in range(last[0])]
    for cell in cells:
        if cell["samples"]:
            shares[cell["first"] - 1][cell["second"] - 1] = cell["correct"] / cell["samples"]
    figure = Figure(figsize=(4.8, 4.4), layout="compressed")
    FigureCanvasAgg(figure)
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
