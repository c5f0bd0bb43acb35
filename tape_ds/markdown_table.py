"""Write Markdown tables for pages, cards and terminals."""

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "r": "---:"}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None) -> str:
    """Return a table without a final line break.

    Args:
        header: a cell for each column.
        rows: as many cells each; line breaks become blanks, and ``|`` is escaped.
        align: ``l`` (left) or ``r`` (right) for each column; the last letter also holds for the columns after it.
            Default: the first column left, the others right.

    Raises:
        ValueError: a row has another length than the header, or ``align`` has another letter.
    """
    letters = align or "lr"
    if set(letters) - set(_RULES):
        raise ValueError(f"align={align!r}: give letters of {''.join(_RULES)}")
    rules = [_RULES[letters[min(column, len(letters) - 1)]] for column in range(len(header))]
    lines = [[_cell(cell) for cell in header], rules]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"{len(row)} cells under {len(header)} headings: {row}")
        lines.append([_cell(cell) for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
