"""A page as Markdown: the same sections and tables; charts are named, since their numbers stand in the tables."""

import re
from html import escape

from evaluation.pages.parts import Cell, Chart, Folded, Grid, Head, Note, Page, Part, Section, Table, Text

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~])")


def page(content: Page, picture: str) -> str:
    """The whole file; ``picture`` is the name of the HTML file that has the charts."""
    parts = [f"# {_text(content.title)}", _text(content.intro)]
    for section in content.sections:
        parts += [f"## {_text(section.title)}", *_section(section, picture)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: Section, picture: str) -> list[str]:
    return [_part(part, picture) for part in section.parts]


def _part(part: Part, picture: str) -> str:
    if isinstance(part, Text):
        return _text(part.text)
    if isinstance(part, Note):
        return f"> {'**Careful:** ' if part.loud else ''}{_text(part.text)}"
    if isinstance(part, Table):
        return f"**{_text(part.caption)}**\n\n{_table(part)}"
    if isinstance(part, Chart):
        return f"{_text(part.title)}: a chart in {_text(picture)}."
    if isinstance(part, Grid):
        return "\n\n".join(_part(each, picture) for each in part.parts)
    assert isinstance(part, Folded)
    inner = [_part(each, picture) for each in part.parts]
    return "\n\n".join([f"### {_text(part.title)}", *inner])


def _table(table: Table) -> str:
    head = [_head(each) for each in table.heads]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    lines += [[_text(name), *map(_cell, cells)] for name, cells in table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _head(head: Head) -> str:
    return f"*{_text(head.text)}, {_text(head.published)}*" if head.published else _text(head.text)


def _cell(cell: Cell) -> str:
    text = f"**{_text(cell.text)}**" if cell.best else _text(cell.text)
    return (
        f"{text} ({_text(cell.detail)})"
        if cell.detail and cell.detail[0] != "±"
        else f"{text} {_text(cell.detail)}".strip()
    )


def _text(text: str) -> str:
    """Nothing in it is markup any more, nor a new line."""
    return _SPECIAL.sub(r"\\\1", escape(" ".join(text.split()), quote=False))
