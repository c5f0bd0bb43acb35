"""Line charts by matplotlib as SVG, in the text colour of the page around them."""

import io
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, MultipleLocator, NullLocator

from tape_ds.numbers import length
from tape_ds.scoring.pages.html import COLOURS, MARKERS, keyed

INK = "#010203"
"""Replaced by the page's colour of text."""
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
STYLE: dict[Any, Any] = dict.fromkeys(INKED, INK) | {"svg.fonttype": "none", "font.size": 11, "grid.alpha": 0.2}
STYLE |= {"axes.facecolor": "none", "figure.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False}


def chart(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[tuple[int, str], Mapping[float, float]],
    *,
    log: bool = False,
    native_length: int | None = None,
) -> Markup:
    """Return a figure with its legend.

    Args:
        title: of the figure, unlike all others of the page.
        x_label, y_label: with units; 8,192 tokens are written 8k.
        lines: number and name of a column -> its points, x -> y.
        log: x is logarithmic.
        native_length: position of a vertical line (tokens).
    """
    drawn = io.StringIO()
    with rc_context(STYLE | {"svg.hashsalt": title}):  # the same title gives the same bytes
        figure = Figure(figsize=(4.7, 3.1), layout="constrained")  # a phone shows its text as large as the page's
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label, xscale="log" if log else "linear")
        axes.grid(axis="y")
        for (column, _), points in lines.items():
            x, y = np.array([*points], dtype=float), np.array([*points.values()], dtype=float)
            every = max(1, math.ceil(len(x) / 9))
            axes.plot(
                x,
                np.where(np.isfinite(y), y, np.nan),
                color=COLOURS[column % len(COLOURS)],
                linestyle="-" if column < len(COLOURS) else "--",
                marker=list(MARKERS)[column % len(MARKERS)],
                markevery=(column % every, every),
            )
        if native_length is not None:
            axes.axvline(native_length, color=INK, linestyle=":")
            axes.set_xlabel(f"{x_label}; dotted: native {length(native_length)}")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if "tokens" in x_label:
            places = sorted({x for points in lines.values() for x in points})
            step = 2 ** max(0, math.ceil(math.log2(max(axes.get_xlim()) / 7)))
            most = math.ceil(len(places) / 6)
            axes.xaxis.set_major_locator(FixedLocator(places[::-most]) if log else MultipleLocator(step))
            axes.xaxis.set_major_formatter(lambda x, _: length(round(x)))
        axes.xaxis.set_minor_locator(NullLocator())
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = re.sub(r' id="[\w.]+_\d+"', "", drawn.getvalue()[drawn.getvalue().index("<svg") :]).replace(
        INK, "currentColor"
    )
    legend = Markup("").join(Markup("<span>{}</span> ").format(keyed(name, column)) for column, name in lines)
    form = '<figure class="chart"><figcaption>{}</figcaption><p class="legend">{}</p>{}</figure>'
    return Markup(form).format(title, legend, Markup(svg.replace("<svg ", '<svg role="img" ', 1)))
