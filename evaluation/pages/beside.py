"""Published numbers beside ours: columns of their own, each under what was measured there, and what one has to know.

They stand beside a row only where task, metric, length and, of perplexity, the convention are the row's. With which
stride and options it was scored may differ, and is then said.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation import published
from evaluation.pages.parts import Cell, Head, Note


@dataclass(frozen=True)
class Beside:
    """The published columns of one table."""

    heads: list[Head]
    cells: list[list[Cell]]
    """For each of the quantities asked for, in their order."""
    notes: list[Note]


def find(
    quantities: Sequence[published.Quantity], *, places: int, convention: str | None = None, scoring: str = ""
) -> Beside:
    """Columns for rows that hold ``quantities``; none where nothing is published.

    Args:
        quantities: of each row.
        places: decimals that were published.
        convention: by which the rows' perplexity was scored.
        scoring: its stride and options.
    """
    found = list(published.tables_for(quantities))
    tables = [table for table in found if table.convention in (None, convention)]
    heads = [Head(method, published=_over(table)) for table in tables for method in table.rows]
    cells = [
        [_as_published(*table.value(method, wanted), places) for table in tables for method in table.rows]
        for wanted in quantities
    ]
    notes = []
    for table in tables:
        said = f"Published, not measured here, and of another model: {table.name} of {table.source}"
        notes.append(Note(" ".join([f"{said} ({table.title}; {table.setting}).", *table.caveats])))
        if table.convention is not None and table.scoring != scoring:
            said = f"{table.name} was scored with {table.scoring}, the runs with {scoring or 'the defaults'}"
            notes.append(Note(f"{said}: its numbers may differ for that alone.", loud=True))
    for table in found:
        if table not in tables:
            said = f"{table.name} of {table.source} has numbers of this text by another convention, {table.convention}"
            notes.append(Note(f"{said}: they are not the same quantity and are left out."))
    return Beside(heads, cells, notes)


def _as_published(value: float | None, error: float | None, places: int) -> Cell:
    if value is None:
        return Cell()
    return Cell(f"{value:.{places}f}", "" if error is None else f"± {error:.{places}f}")


def _over(table: published.Table) -> str:
    return f"published, {table.setting} ({table.name})"
