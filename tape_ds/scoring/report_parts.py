"""Parts of the report's page: figures with their digits, tables of scores, and pictures by matplotlib."""

import io
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, NullLocator

from tape_ds.numbers import length
from tape_ds.scoring import differences

TEMPLATES = FileSystemLoader(Path(__file__).parent)
HTML: Any = (
    Environment(loader=TEMPLATES, autoescape=True, undefined=StrictUndefined)
    .get_template("report_page.html")
    .module
)
"""The template's macros: ``warning``, ``table``, ``chart``, ``pictures``, ``answer`` and ``page``."""
MISSING = Markup("–")
NATS = "nats per token"
PERCENT = "%"
COLOURS = ("#0072b2", "#d55e00", "#008f68", "#c0609a", "#8a7200", "#7e6bd0", "#0e8c9b", "#c4483f")
"""Colours of lines, repeated; the contrast of each is at least 3 on light and on dark paper."""
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}
"""matplotlib's name of a marker -> its character."""
INK = "#010203"
"""Replaced by the page's colour of text."""
INKED = (
    "text.color",
    "axes.labelcolor",
    "axes.edgecolor",
    "xtick.color",
    "ytick.color",
    "grid.color",
)
STYLE: dict[Any, Any] = dict.fromkeys(INKED, INK) | {
    "svg.fonttype": "none",
    "font.size": 11,
    "grid.alpha": 0.2,
}
STYLE |= {
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Lines = Mapping[str, Mapping[float, float]]
"""name -> x -> y."""


class Score(NamedTuple):
    column: str
    row: str
    value: float | None
    error: float | None = None
    """Standard error."""
    samples: int | None = None
    """How many it is a mean over."""
    tokens: int = -1
    """Length or position, which orders the rows."""
    detail: str = ""


def interval(row: Mapping[str, Any]) -> str:
    """Return an interval of shares as percentages: ``57 to 91``."""
    return f"{100 * row['low']:.0f} to {100 * row['high']:.0f}"


def number(
    value: float | None, error: float | None = None, places: int | None = None, sign: str = ""
) -> Markup:
    """Return a figure with its standard error, both rounded to the error's second digit; without an error with
    ``places`` decimals, or four significant digits. Hovering shows all digits. ``sign``: ``+`` shows that of a
    difference."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return Markup(value)
    exact = repr(value)
    ending = ""
    if error is not None and math.isfinite(error):
        places = 2
        if error > 0:
            places = max(0, 1 - math.floor(math.log10(error)))
        exact = f"{exact} ± {error!r}"
        ending = f" ± {error:.{places}f}"
    if places is None and 0 < abs(value) < 1000:
        places = 3 - math.floor(math.log10(abs(value)))
    if abs(value) < 1e6:
        text = f"{value:{sign},.{places or 0}f}"
    else:
        text = f"{value:{sign}.4g}"
    return Markup('<span title="{}">{}{}</span>').format(exact, text, ending)


def compare(
    caption: str, scores: Sequence[Score], *, places: int | None = None, lowest: bool = False
) -> list[Markup]:
    """Return a table of scores, the lowest of a row in bold if ``lowest``, and a warning if a row has means over
    different numbers of samples. ``places``: decimals of scores without a standard error."""
    columns = list(dict.fromkeys(map(attrgetter("column"), scores)))
    by_row: defaultdict[str, dict[str, Score]] = defaultdict(dict)
    for score in sorted(scores, key=attrgetter("tokens")):
        by_row[score.row][score.column] = score
    rows = []
    unequal = []
    for row, by_column in by_row.items():
        values = {score.value for score in by_column.values() if score.value is not None}
        finite = set(filter(math.isfinite, values))
        differ = len(set(map(attrgetter("samples"), by_column.values()))) > 1
        if differ:
            unequal.append(row)
        cells = []
        for column in columns:
            score = by_column.get(column, Score(column, row, None))
            details = score.detail
            if differ and score.samples:
                details = ", ".join(filter(None, [details, f"n = {score.samples:,}"]))
            cell = number(score.value, score.error, places)
            if details:
                cell += f" ({details})"
            # the lowest of one is no result
            if lowest and len(finite) > 1 and score.value == min(finite):
                cell = Markup("<b>{}</b>").format(cell)
            cells.append(cell)
        rows.append([row, *cells])
    if lowest:
        caption += "; lowest in bold"
    parts = [HTML.table(caption, ["", *columns], rows)]
    if unequal:
        parts.append(HTML.warning(f"Not over equally many samples (n): {', '.join(unequal)}."))
    return parts


def lines_of(scores: Sequence[Score], shift: float = 0) -> dict[str, dict[float, float]]:
    lines: dict[str, dict[float, float]] = {}
    for score in sorted(scores, key=attrgetter("tokens")):
        if score.tokens >= 0 and score.value is not None:
            lines.setdefault(score.column, {})[score.tokens + shift] = score.value
    return lines


class Gallery:
    """The pictures of a page. A name has the same colour and marker in all of them."""

    def __init__(self, names: Iterable[str]):
        self.pictures: list[Markup] = []
        self.places = {name: place for place, name in enumerate(names)}

    def draw(
        self,
        title: str,
        x_label: str,
        y_label: str,
        lines: Lines,
        *,
        log: bool = False,
        limit: float | None = None,
        native: int | None = None,
    ) -> None:
        """Add a figure with its legend, as SVG in the text colour of the page.

        Args:
            title: of the figure, unlike all others of the page.
            x_label, y_label: with units; 8,192 tokens are written 8k.
            log: x is logarithmic.
            limit: y reaches as far above 0 and below; what is further away leaves the picture.
            native: tokens, marked by a dotted line.
        """
        drawn = io.StringIO()
        legend = []
        # the same title gives the same bytes
        with rc_context(STYLE | {"svg.hashsalt": title}):
            # a phone shows its text as large as the page's
            figure = Figure(figsize=(4.7, 3.1), layout="constrained")
            axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
            axes.grid(axis="y")
            for name, points in lines.items():
                at = self.places.setdefault(name, len(self.places))
                colour = COLOURS[at % len(COLOURS)]
                marker = list(MARKERS)[at % len(MARKERS)]
                legend.append((name, colour, MARKERS[marker]))
                y = np.array([*points.values()], dtype=float)
                # about nine markers a line, and those of two lines at different places
                every = max(1, math.ceil(len(y) / 9))
                axes.plot(
                    [*points],
                    np.where(np.isfinite(y), y, np.nan),
                    color=colour,
                    linestyle="-" if at < len(COLOURS) else "--",
                    marker=marker,
                    markevery=(at % every, every),
                )
            most = max(itertools.chain.from_iterable(lines.values()), default=0)
            if limit is not None:
                axes.set_ylim(-limit, limit)
            elif y_label == PERCENT:
                # room for the markers of 0 and 100
                axes.set_ylim(-4, 104)
            if native is not None and native < most:
                axes.axvline(native, color=INK, linestyle=":", linewidth=1.2)
                legend.append((f"native length {length(native)}", "currentColor", "┊"))
            _set_ticks(axes, log, most if "tokens" in x_label else None)
            # none of them: the same results give the same bytes on another day
            metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(drawn, format="svg", metadata=metadata)
        svg = drawn.getvalue()[drawn.getvalue().index("<svg") :]
        # ids would be twice in a page of several pictures
        svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
        svg = svg.replace(INK, "currentColor").replace("<svg ", '<svg role="img" ', 1)
        self.pictures.append(HTML.chart(title, legend, svg))

    def draw_differences(
        self,
        title: str,
        x_label: str,
        y_label: str,
        lines: Lines,
        reference: str | None,
        **options: Any,
    ) -> None:
        """Add the differences from one of two or more lines, or from their median.

        Stretches of a text differ more than good models do, and a model past its length has a loss of another order:
        lines cover one another until one of them is subtracted.
        """
        if len(lines) < 2:
            return
        less = differences.less_reference(lines, reference)
        limit = differences.height(less)
        outside = []
        for name, points in less.items():
            if any(abs(y) > limit for y in points.values()):
                outside.append(name)
        words = f"{title}: difference from {reference or 'the median'}"
        if outside:
            words += f" (leaves the picture: {', '.join(outside)})"
        self.draw(words, x_label, f"difference ({y_label})", less, limit=limit, **options)


def _set_ticks(axes: Any, log: bool, most_tokens: float | None) -> None:
    """Put ticks at whole numbers, and those of tokens at multiples of a power of two, written as 8k."""
    if log:
        axes.set_xscale("log", base=2)
    elif most_tokens is not None:
        axes.xaxis.set_major_locator(MultipleLocator(differences.tick_step(most_tokens)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 4, 8, 10]))
    if most_tokens is not None:
        axes.xaxis.set_major_formatter(lambda x, _: length(round(x)))
    axes.xaxis.set_minor_locator(NullLocator())
