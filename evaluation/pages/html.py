"""A page as one HTML file: no script, no font, no style and no picture from anywhere else, every string escaped."""

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from evaluation.pages import svg
from evaluation.pages.parts import MISSING, Cell, Chart, Folded, Grid, Head, Note, Page, Part, Section, Table, Text

STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NUMBER = re.compile(r"[−-]?[\d,.∞]+( ?(%|GiB|s)|e[+-]?\d+|:\d\d)*|NaN|–")
_BREAKS = re.compile(r"(?<=\w)([_./])(?=\w)")
LONG_NAME = 22
"""Letters; a name of more may be broken."""
SHADES = 10
"""Steps of the colours of a share; :file:`page.css` has one more, 0 included."""


def page(content: Page) -> str:
    """The whole file."""
    links = "".join(f'<li><a href="#{each.anchor}">{escape(each.title)}</a></li>' for each in content.sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(content.title)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(content.title)}</h1>\n<p>{escape(content.intro)}</p>\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n'
        + "".join(map(_section, content.sections))
        + "</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    inner = "\n".join(map(_part, section.parts))
    return f'<section id="{section.anchor}">\n<h2>{escape(section.title)}</h2>\n{inner}\n</section>\n'


def _part(part: Part) -> str:
    if isinstance(part, Text):
        return f"<p>{escape(part.text)}</p>"
    if isinstance(part, Note):
        mark = "<strong>Careful:</strong> " if part.loud else ""
        return f'<p class="{"note loud" if part.loud else "note"}">{mark}{escape(part.text)}</p>'
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Chart):
        return _chart(part)
    if isinstance(part, Grid):
        return f'<div class="grid">{"".join(map(_part, part.parts))}</div>'
    assert isinstance(part, Folded)
    return f"<details><summary>{escape(part.title)}</summary>{''.join(map(_part, part.parts))}</details>"


def _chart(chart: Chart) -> str:
    caption = f"<figcaption>{escape(chart.title)}</figcaption>"
    return f'<figure class="plot">{caption}{svg.legend(chart.lines)}{svg.chart(chart)}</figure>'


def _table(table: Table) -> str:
    """In a box of its own that scrolls where the table is wider than the page."""
    numeric = [all(_NUMBER.fullmatch(row[at].text) for _, row in table.rows) for at in range(len(table.heads) - 1)]
    body = "".join(
        f'<tr><th scope="row">{_soft(name)}</th>{"".join(map(_cell, cells, table.heads[1:], numeric))}</tr>'
        for name, cells in table.rows
    )
    run = next((head.run for head in table.heads[:1] if head.run is not None), None)
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.caption)}">'
    kind = "dense" if table.dense else "rows"
    return (
        f'<figure class="table"><figcaption>{_run(table.caption, run)}</figcaption>{box}<table class="{kind}">'
        f"<thead>{_heads(table, numeric)}</thead><tbody>{body}</tbody></table></div></figure>"
    )


def _heads(table: Table, numeric: Sequence[bool]) -> str:
    """One row of names; above it, where there are published columns, what was measured there."""
    first, *others = table.heads
    above = ""
    if any(head.published for head in others):
        groups = [(over, len(list(heads))) for over, heads in groupby(others, key=lambda head: head.published)]
        cells = [
            f'<th scope="colgroup" colspan="{count}"{" class=pub" if over else ""}>{escape(over or "these runs")}</th>'
            for over, count in groups
        ]
        above = f"<tr><td></td>{''.join(cells)}</tr>"
    names = "".join(map(_head, others, numeric))
    return f'{above}<tr><th scope="col">{escape(first.text)}</th>{names}</tr>'


def _head(head: Head, numeric: bool) -> str:
    classes = [name for name, wanted in (("num", numeric), ("pub", head.published)) if wanted]
    return f'<th scope="col"{_classes(classes)}>{_run(head.text, head.run)}</th>'


def _run(name: str, run: int | None) -> str:
    """A name in its run's colour, where it is of a run."""
    if run is None:
        return _soft(name)
    if len(name) > LONG_NAME:
        return f'<span class="run long {svg.colour(run)}">{_soft(name)}</span>'
    return f'<span class="run {svg.colour(run)}">{escape(name)}</span>'


def _cell(cell: Cell, head: Head, numeric: bool) -> str:
    classes = ["num"] if numeric else []
    classes += ["pub"] if head.published else []
    classes += ["none"] if cell.text == MISSING else []
    classes += [] if cell.share is None else [f"s{round(SHADES * cell.share)}"]
    text = f"<b>{_soft(cell.text)}</b>" if cell.best else _soft(cell.text)
    detail = f" <small>{escape(cell.detail)}</small>" if cell.detail else ""
    return f"<td{_classes(classes)}>{text}{detail}</td>"


def _soft(text: str) -> str:
    """Escaped, with places where a long name may be broken."""
    return escape(text) if _NUMBER.fullmatch(text) else _BREAKS.sub(r"\1<wbr>", escape(text))


def _classes(names: Sequence[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""
