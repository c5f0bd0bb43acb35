"""Charts as inline SVG: small enough to be read on a phone, coloured by the page's own style in light and dark.

A run is told apart by its colour and by the shape of its markers. Coordinates are rounded, so that the same figures
give the same bytes everywhere.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from evaluation.pages import numbers
from evaluation.pages.parts import Chart, Line

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 12, 46
COLOURS = 8
"""Runs with colours of their own; later ones use them again, dashed."""
MOST_MARKERS = 9
_MARKERS = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    "M-3.2 -3.2h6.4v6.4h-6.4z",
    "M0 -4.2L4 3.2H-4z",
    "M0 -4.6L4.2 0L0 4.6L-4.2 0z",
    "M0 4.2L4 -3.2H-4z",
    "M-4.2 -1.3h2.9v-2.9h2.6v2.9h2.9v2.6h-2.9v2.9h-2.6v-2.9h-2.9z",
)


@dataclass(frozen=True)
class _Axis:
    """From values to places on the paper."""

    low: float
    high: float
    first: float
    """Where ``low`` lies."""
    last: float
    log: bool

    def place(self, value: float) -> float:
        share = (self._scaled(value) - self._scaled(self.low)) / (self._scaled(self.high) - self._scaled(self.low))
        return self.first + share * (self.last - self.first)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value


def chart(content: Chart) -> str:
    """The picture; its legend is :func:`legend`."""
    points = [point for line in content.lines for point in line.points if _drawable(point, content)]
    label = f'role="img" aria-label="{escape(content.alt)}"'
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" {label}>'
    if not points:
        return f'{head}<text class="axis" x="{WIDTH // 2}" y="{HEIGHT // 2}">nothing finite to draw</text></svg>'
    xs = [x for x, _ in points] + [x for x, _ in content.marks]
    x_axis = _axis(xs, content.x_log, LEFT, WIDTH - RIGHT, pad=0.02)
    ys = [y for _, y in points] if content.y_most is None else [-content.y_most, content.y_most]
    y_axis = _axis(ys, content.y_log, HEIGHT - BOTTOM, TOP, pad=0.06)
    parts = [head, *_y_ticks(y_axis), *_x_ticks(x_axis, content)]
    marks = _marks(x_axis, content)
    parts += marks[::2]
    frame = f'y="{TOP}" width="{WIDTH}" height="{HEIGHT - BOTTOM - TOP}"'
    parts.append(f'<svg {frame} viewBox="0 {TOP} {WIDTH} {HEIGHT - BOTTOM - TOP}">')  # cuts what leaves it
    parts += [part for line in content.lines for part in _line(line, x_axis, y_axis, content)]
    parts += ["</svg>", *marks[1::2]]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 8}">{escape(content.x_label)}</text>'
    )
    parts.append(
        f'<text class="label" transform="translate(12 {middle:.1f}) rotate(-90)">{escape(content.y_label)}</text>'
    )
    return "".join([*parts, "</svg>"])


def legend(lines: Iterable[Line]) -> str:
    """A list of the lines, each with a piece of itself."""
    items = [
        f'<li><svg class="key {colour(line.run)}" viewBox="0 0 26 12" aria-hidden="true"><path class="line" d="M1 6H25"'
        f'{_dash(line.run)}/><path class="dot" transform="translate(13 6)" d="{_marker(line.run)}"/></svg>'
        f"{escape(line.label)}</li>"
        for line in lines
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def colour(run: int) -> str:
    """The class that gives a run's colour."""
    return f"r{run % COLOURS}"


def _marker(run: int) -> str:
    return _MARKERS[run % len(_MARKERS)]


def _dash(run: int) -> str:
    return ' stroke-dasharray="5 3"' if run >= COLOURS else ""


def _drawable(point: tuple[float, float], content: Chart) -> bool:
    x, y = point
    positive = (x > 0 or not content.x_log) and (y > 0 or not content.y_log)
    return math.isfinite(x) and math.isfinite(y) and positive


def _axis(values: Sequence[float], log: bool, first: float, last: float, pad: float) -> _Axis:
    """Room on both sides; a single value gets an axis around it."""
    low, high = min(values), max(values)
    if log:
        ratio = (high / low) ** pad if high > low else 2.0
        return _Axis(low / ratio, high * ratio, first, last, log)
    room = pad * (high - low) if high > low else 0.5 * abs(high) or 1.0
    return _Axis(low - room, high + room, first, last, log)


def _y_ticks(axis: _Axis) -> list[str]:
    ticks = _log_ticks(axis) if axis.log else _even_ticks(axis, 5)
    parts = []
    for tick in ticks:
        y = axis.place(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="axis y" x="{LEFT - 6}" y="{y + 4:.1f}">{_tick(tick)}</text>')
    return parts


def _x_ticks(axis: _Axis, content: Chart) -> list[str]:
    if content.x_log:
        places = sorted({x for line in content.lines for x, _ in line.points})
        ticks = _spaced(places, axis)
    elif content.x_tokens:
        step = 2 ** max(0, math.ceil(math.log2(max(axis.high, 1) / 8)))
        ticks = [float(tick) for tick in range(0, int(axis.high) + 1, step) if tick >= axis.low]
    else:
        ticks = _even_ticks(axis, 6)
    parts = [f'<path class="base" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>']
    for tick in ticks:
        x, word = axis.place(tick), numbers.length(int(tick)) if content.x_tokens else _tick(tick)
        parts.append(f'<path class="base" d="M{x:.1f} {HEIGHT - BOTTOM}v4"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}">{word}</text>')
    return parts


def _spaced(places: Sequence[float], axis: _Axis) -> list[float]:
    """Those of ``places`` whose labels do not touch, from the right."""
    kept: list[float] = []
    for place in reversed(places):
        if not kept or axis.place(kept[-1]) - axis.place(place) >= 38:
            kept.append(place)
    return kept[::-1]


def _even_ticks(axis: _Axis, most: int) -> list[float]:
    """At most ``most`` round numbers, evenly spaced."""
    rough = (axis.high - axis.low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(axis.low / step)
    return [round(step * at, 12) for at in range(first, math.floor(axis.high / step) + 1)]


def _log_ticks(axis: _Axis) -> list[float]:
    """1, 2 and 5 times powers of ten; the powers alone where there are many."""
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        inside = [tick for tick in ticks if axis.low <= tick <= axis.high]
        if 2 <= len(inside) <= 7:
            return inside
    return inside[:: max(1, len(inside) // 6)] or [axis.low, axis.high]


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}".replace("-", "−")


def _marks(axis: _Axis, content: Chart) -> list[str]:
    """A line and its words for each, in turn."""
    parts = []
    for x, words in content.marks:
        at = axis.place(x)
        side, anchor = (5, "start") if at < (LEFT + WIDTH - RIGHT) / 2 + 40 else (-5, "end")
        parts.append(f'<path class="mark" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        style = f'x="{at + side:.1f}" y="{TOP + 9}" text-anchor="{anchor}"'
        parts.append(f'<text class="marked" {style}>{escape(words)}</text>')
    return parts


def _line(line: Line, x_axis: _Axis, y_axis: _Axis, content: Chart) -> list[str]:
    """A path with a gap where a point cannot be drawn, and markers on some of its points."""
    steps, markers, drawing = [], [], False
    every = max(1, math.ceil(len(line.points) / MOST_MARKERS))
    for at, point in enumerate(line.points):
        if not _drawable(point, content):
            drawing = False
            continue
        x, y = x_axis.place(point[0]), y_axis.place(point[1])
        steps.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = True
        if (at + line.run) % every == 0:
            markers.append(f'<path class="dot" transform="translate({x:.1f} {y:.1f})" d="{_marker(line.run)}"/>')
    if not steps:
        return []
    path = f'<path class="line" d="{"".join(steps)}"{_dash(line.run)}/>'
    return [f'<g class="{colour(line.run)}">{path}{"".join(markers)}</g>']
