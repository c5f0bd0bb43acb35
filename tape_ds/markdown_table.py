"""Write Markdown tables for pages, cards and terminals."""

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "r": "---:"}


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None
) -> str:
    """Return a table without a final line break.

    Args:
        header: a cell for each column.
        rows: as many cells each; line breaks become blanks, and ``|`` is escaped.
        align: ``l`` (left) or ``r`` (right) for each column; the last letter also holds for the columns after it.
            Default: the first column left, the others right.
    """
    letters = align or "lr"
    rules = [_RULES[letters[min(column, len(letters) - 1)]] for column in range(len(header))]
    lines = [list(map(_cell, header)), rules]
    for row in rows:
        assert len(row) == len(header), f"{len(row)} cells under {len(header)} headings: {row}"
        lines.append(list(map(_cell, row)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
