"""Published numbers beside ours: columns of their own, each under what was measured there, and what one has to know.

They stand beside a row only where task, metric and length are the row's. How perplexity was scored may differ, and is
then said.
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


def find(quantities: Sequence[published.Quantity], *, places: int, convention: str | None = None) -> Beside:
    """Columns for rows that hold ``quantities``; none where nothing is published.

    Args:
        quantities: of each row.
        places: decimals that were published.
        convention: by which the rows' perplexity was scored.
    """
    tables = list(published.tables_for(quantities))
    heads = [Head(method, published=_over(table)) for table in tables for method in table.rows]
    cells = [
        [_as_published(*table.value(method, wanted), places) for table in tables for method in table.rows]
        for wanted in quantities
    ]
    notes = []
    for table in tables:
        said = f"Published, not measured here, and of another model: {table.name} of {table.source}"
        notes.append(Note(" ".join([f"{said} ({table.title}; {table.setting}).", *table.caveats])))
        if table.convention is not None and table.convention != convention:
            wrong = f"{table.name} was scored by another convention ({table.convention}) than the runs ({convention})"
            notes.append(Note(f"{wrong}: its numbers are not the same quantity.", loud=True))
    return Beside(heads, cells, notes)


def _as_published(value: float | None, error: float | None, places: int) -> Cell:
    if value is None:
        return Cell()
    return Cell(f"{value:.{places}f}", "" if error is None else f"± {error:.{places}f}")


def _over(table: published.Table) -> str:
    return f"published, {table.setting} ({table.name})"
