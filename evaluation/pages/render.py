"""A page as one HTML file and as Markdown, by the templates of this folder.

The HTML needs nothing else: no script, no font, no style and no picture from elsewhere, and every string is escaped.
"""

import re
from html import escape as escape_html
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from evaluation.pages.parts import COLOURS, MARKERS, Best, Chart, Page
from tape_ds import storage

TEMPLATES = Path(__file__).with_name("templates")
SHORT = 12
"""Letters of a name that is not broken."""
_BREAKS = re.compile(r"(?<=[^\W\d])([_./])(?=\w)")
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~])")


def soft(text: str) -> Markup:
    """Escaped; a long name with places where it may be broken."""
    return escape(text) if len(text) <= SHORT else Markup(_BREAKS.sub(r"\1<wbr>", str(escape(text))))


def markdown(text: str) -> str:
    """Nothing in it is markup any more, nor a new line."""
    return _SPECIAL.sub(r"\\\1", escape_html(" ".join(text.split()), quote=False))


def key(run: int) -> Markup:
    """A run's marker in its colour, for legends and heads of tables."""
    return Markup(
        f'<span class="key" style="color: var(--c{run % COLOURS})">{[*MARKERS.values()][run % len(MARKERS)]}</span>'
    )


def _svg(chart: Chart) -> Markup:
    from evaluation.pages import charts  # matplotlib is slow to import, and not every page has a chart

    return charts.svg(chart)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"soft": soft, "md": markdown, "svg": _svg, "key": key}
    made.tests["best"] = lambda cell: isinstance(cell, Best)
    return made


ENVIRONMENT = _environment()


def fill(template: str, **content: Any) -> str:
    """A template of this folder, with ``content`` under its names."""
    return ENVIRONMENT.get_template(template).render(**content)


def write(page: Page, folder: Path, name: str) -> None:
    """``NAME.html`` and ``NAME.md`` in ``folder``, each whole or as it was before."""
    html = re.sub(r"\n\s*\n", "\n", fill("report.html", page=page))
    text = re.sub(r"\n{3,}", "\n\n", fill("report.md", page=page, picture=f"{name}.html")).strip() + "\n"
    storage.write_text(folder / f"{name}.html", html)
    storage.write_text(folder / f"{name}.md", text)
