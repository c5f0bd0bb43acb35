"""Charts by matplotlib as SVG inside a page: coloured by the page's own style in light and dark.

A run is told apart by its colour and by the shape of its markers. The same figures give the same bytes.
"""

import io
import math
import re
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, MultipleLocator, NullLocator

from evaluation.pages import numbers
from evaluation.pages.parts import MARKERS, Chart

INCHES = (4.7, 3.1)
"""As wide as a phone's screen, so that 11 points of text are as large there; report.html has the same in points."""
RUNS = ("#0b6bb5", "#b85207", "#08784f", "#b8418a", "#806400", "#6a51c9", "#107583", "#b3372f")
"""What stands for the runs' colours in a drawing."""
SOFT, RULE, GREY, CARD = "#5b6470", "#dfe3e8", "#626a76", "#fefefe"
STYLE = Path(__file__).with_name("templates") / "chart.mplstyle"
VARIABLES = {colour: f"c{at}" for at, colour in enumerate(RUNS)} | {
    SOFT: "soft",
    RULE: "rule",
    GREY: "grey",
    CARD: "card",
}
"""Colour in a drawing -> the variable of page.css that takes its place."""


def svg(chart: Chart) -> Markup:
    """Return what stands inside of ``<svg>``, and its end; the legend stands in the page."""
    drawn = io.StringIO()
    with rc_context(fname=STYLE):
        figure = Figure(figsize=INCHES, layout="constrained")
        _draw(figure.add_subplot(), chart)
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    inner = re.sub(r' id="\w+_\d+"', "", drawn.getvalue().partition("<svg")[2].partition(">")[2])
    for colour, variable in VARIABLES.items():
        inner = inner.replace(colour, f"var(--{variable})")
    return Markup(inner)


def _draw(axes: Axes, chart: Chart) -> None:
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    places: set[float] = set()
    for line in chart.lines:
        x, y = np.asarray(line.points, dtype=float).reshape(-1, 2).T
        seen = np.isfinite(y) & ((y > 0) | (not chart.y_log)) & ((x > 0) | (not chart.x_log))
        places |= set(x[seen].tolist())
        every = max(1, math.ceil(len(x) / 9))
        axes.plot(
            x,
            np.where(seen, y, math.nan),
            color=RUNS[line.run % len(RUNS)],
            linestyle="--" if line.run >= len(RUNS) else "-",
            linewidth=2,
            marker=list(MARKERS)[line.run % len(MARKERS)],
            markevery=(line.run % every, every),
            markersize=6.5,
            markeredgecolor=CARD,
        )
    if not places:
        axes.text(0.5, 0.5, "nothing finite to draw", ha="center", transform=axes.transAxes)
        return
    _scale(axes, chart, sorted(places))
    if chart.mark is not None:
        axes.axvline(chart.mark, color=GREY, linestyle="--", linewidth=1.2)
        left = chart.mark < sum(axes.get_xlim()) / 2
        axes.annotate(
            f"native {numbers.length(chart.mark)}",
            (chart.mark, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(6 if left else -6, 0),
            textcoords="offset points",
            ha="left" if left else "right",
            va="top",
        )


def _scale(axes: Axes, chart: Chart, places: list[float]) -> None:
    """Scales, and ticks that are few enough for a phone."""
    axes.set(xscale="log" if chart.x_log else "linear", yscale="log" if chart.y_log else "linear")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.x_log:  # from the longest, so that it has its word
        axes.xaxis.set_major_locator(FixedLocator(places[:: -math.ceil(len(places) / 6)]))
    elif chart.x_tokens:
        axes.xaxis.set_major_locator(MultipleLocator(2 ** max(0, math.ceil(math.log2(max(places[-1], 1) / 7)))))
    if chart.y_log:
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
    axes.xaxis.set_major_formatter(lambda x, _: numbers.length(round(x)) if chart.x_tokens else _number(x))
    axes.yaxis.set_major_formatter(lambda y, _: _number(y))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}".replace("-", "−")
