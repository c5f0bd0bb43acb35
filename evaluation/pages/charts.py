"""Charts by matplotlib as SVG inside a page: coloured by the page's own style in light and dark.

A run is told apart by its colour and by the shape of its markers. The same figures give the same bytes.
"""

import io
import math
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullLocator

from evaluation.pages import numbers
from evaluation.pages.parts import MARKERS, Chart

INCHES = (4.7, 3.1)
"""As wide as a phone's screen, so that 11 points of text are as large there."""
METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
RUNS = ("#0b6bb5", "#b85207", "#08784f", "#b8418a", "#806400", "#6a51c9", "#107583", "#b3372f")
"""What stands for the runs' colours in a drawing."""
SOFT, RULE, GREY, CARD = "#5b6470", "#dfe3e8", "#626a76", "#fefefe"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tape_ds",
    "font.size": 11,
    "text.color": SOFT,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": RULE,
    "xtick.labelcolor": SOFT,
    "xtick.color": GREY,
    "ytick.labelcolor": SOFT,
    "ytick.left": False,
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
}
VARIABLES = {colour: f"--c{at}" for at, colour in enumerate(RUNS)} | {
    SOFT: "--soft",
    RULE: "--rule",
    GREY: "--grey",
    CARD: "--card",
}
"""Colour in a drawing -> the variable of page.css that takes its place."""
MOST_MARKERS = 9


def svg(chart: Chart) -> Markup:
    """The picture; its legend stands in the page."""
    drawn = io.StringIO()
    with rc_context(STYLE):
        figure = Figure(figsize=INCHES, layout="constrained")
        FigureCanvasSVG(figure)
        _draw(figure.add_subplot(), chart)
        figure.savefig(drawn, format="svg", metadata=METADATA)
    inner = re.sub(r' id="(?:\w+_\d+)"', "", drawn.getvalue().partition("<svg")[2].partition(">")[2])
    for colour, variable in VARIABLES.items():
        inner = inner.replace(colour, f"var({variable})")
    width, height = (72 * each for each in INCHES)
    head = f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(chart.alt)}">'
    return Markup(head + inner)


def _draw(axes: Axes, chart: Chart) -> None:
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    finite = [(x, y) for line in chart.lines for x, y in line.points if _drawable(x, y, chart)]
    if not finite:
        axes.text(0.5, 0.5, "nothing finite to draw", ha="center", transform=axes.transAxes)
        return
    if chart.y_log:
        axes.set_yscale("log")
    if chart.x_log:
        axes.set_xscale("log")
    for line in chart.lines:
        colour, dash = RUNS[line.run % len(RUNS)], "--" if line.run >= len(RUNS) else "-"
        every = max(1, math.ceil(len(line.points) / MOST_MARKERS))
        axes.plot(
            [x for x, _ in line.points],
            [y if _drawable(x, y, chart) else math.nan for x, y in line.points],
            color=colour,
            linestyle=dash,
            linewidth=2,
            marker=list(MARKERS)[line.run % len(MARKERS)],
            markevery=(line.run % every, every),
            markersize=6.5,
            markeredgecolor=CARD,
        )
    _ticks(axes, chart, sorted({x for x, _ in finite}))
    if chart.mark is not None:
        axes.axvline(chart.mark, color=GREY, linestyle="--", linewidth=1.2)
        side = "left" if chart.mark < sum(axes.get_xlim()) / 2 else "right"
        gap = (6 if side == "left" else -6, 0)
        axes.annotate(
            f"native {numbers.length(chart.mark)}",
            (chart.mark, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=gap,
            textcoords="offset points",
            ha=side,
            va="top",
        )


def _drawable(x: float, y: float, chart: Chart) -> bool:
    positive = (x > 0 or not chart.x_log) and (y > 0 or not chart.y_log)
    return math.isfinite(x) and math.isfinite(y) and positive


def _ticks(axes: Axes, chart: Chart, places: Sequence[float]) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.x_log:
        apart = max(1, math.ceil(len(places) / 6))  # from the longest, so that it has its word
        axes.xaxis.set_major_locator(FixedLocator(places[::-1][::apart]))
    elif chart.x_tokens:
        axes.xaxis.set_major_locator(MultipleLocator(2 ** max(0, math.ceil(math.log2(max(places[-1], 1) / 7)))))
    if chart.x_tokens:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: numbers.length(round(tokens))))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(_number))
    if chart.y_log:
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())


def _number(value: float, _: int = 0) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}".replace("-", "−")
