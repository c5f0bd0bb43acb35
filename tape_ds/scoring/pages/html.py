"""One HTML file without scripts that loads nothing: tables, notes and pictures. Every text is escaped."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

MISSING = Markup("–")
COLOURS = ("#0072b2", "#d55e00", "#008f68", "#c0609a", "#8a7200", "#7e6bd0", "#0e8c9b", "#c4483f")
"""Colours of columns, repeated; the contrast of each is at least 3 on light and on dark paper."""
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}
"""matplotlib's name of a marker -> its character."""


def keyed(name: str, column: int) -> Markup:
    """Return a column's name after the colour and marker of its lines."""
    marker = list(MARKERS.values())[column % len(MARKERS)]
    style = f"color: {COLOURS[column % len(COLOURS)]}"
    return Markup('<span class="key" style="{}">{}</span> {}').format(style, marker, name)


def number(value: float | None, error: float | None = None, places: int | None = None) -> Markup:
    """Return a figure with its standard error, both rounded to the error's second digit; without an error with
    ``places`` decimals, or four significant digits. Hovering shows all digits."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return Markup(value)
    exact, ending = repr(value), ""
    if error is not None and math.isfinite(error):
        places = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 2
        exact, ending = f"{exact} ± {error!r}", f" ± {error:.{places}f}"
    if places is None and 0 < abs(value) < 1000:
        places = 3 - math.floor(math.log10(abs(value)))
    text = f"{value:,.{places or 0}f}" if abs(value) < 1e6 else f"{value:.4g}"
    return Markup('<span title="{}">{}{}</span>').format(exact, text, ending)


def note(text: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(text)


def warning(text: str) -> Markup:
    return Markup('<p class="warning"><strong>Careful:</strong> {}</p>').format(text)


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table; the first cell of a row is its name."""
    head = _joined('<th scope="col">{}</th>', heads)
    lines = [_joined('<th scope="row">{}</th>', row[:1]) + _joined("<td>{}</td>", row[1:]) for row in rows]
    form = """<figure><figcaption>{0}</figcaption><div class="scroll" tabindex="0">
<table aria-label="{0}"><thead><tr>{1}</tr></thead>
<tbody>{2}</tbody></table></div></figure>"""
    return Markup(form).format(caption, head, _joined("<tr>{}</tr>\n", lines))


def page(title: str, intro: str, sections: Mapping[str, Sequence[Markup]]) -> str:
    """Return the page; a section without parts is left out."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    shown = {name: parts for name, parts in sections.items() if parts}
    return templates.get_template("page.html").render(title=title, intro=intro, sections=shown) + "\n"


def _joined(form: str, texts: Sequence[str]) -> Markup:
    return Markup("").join(Markup(form).format(text) for text in texts)
