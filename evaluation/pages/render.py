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


def soft(text: str) -> Markup:
    """Escaped; a long name with places where it may be broken."""
    return (
        escape(text) if len(text) <= 12 else Markup(re.sub(r"(?<=[^\W\d])([_./])(?=\w)", r"\1<wbr>", str(escape(text))))
    )


def markdown(text: str) -> str:
    """Nothing in it is markup any more, nor a new line."""
    return re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", escape_html(" ".join(text.split()), quote=False))


def _svg(chart: Chart) -> Markup:
    from evaluation.pages import charts  # matplotlib is slow to import, and not every page has a chart

    return charts.svg(chart)


ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=lambda name: name is not None and name.endswith(".html"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"soft": soft, "md": markdown, "svg": _svg}
ENVIRONMENT.tests["best"] = lambda cell: isinstance(cell, Best)
ENVIRONMENT.globals |= {"colours": COLOURS, "markers": [*MARKERS.values()]}


def fill(template: str, **content: Any) -> str:
    """Return a template of this folder, with ``content`` under its names."""
    return ENVIRONMENT.get_template(template).render(**content)


def write(page: Page, folder: Path, name: str) -> None:
    """``NAME.html`` and ``NAME.md`` in ``folder``, each whole or as it was before."""
    html = re.sub(r"\n\s*\n", "\n", fill("report.html", page=page))
    text = re.sub(r"\n{3,}", "\n\n", fill("report.md", page=page, picture=f"{name}.html"))
    storage.write_text(folder / f"{name}.html", html.strip() + "\n")
    storage.write_text(folder / f"{name}.md", text.strip() + "\n")
