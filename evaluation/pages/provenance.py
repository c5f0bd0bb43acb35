"""Sections of where numbers come from: files, commands, hashes, versions; and published tables in full."""

import shlex
from collections.abc import Sequence

from evaluation import published
from evaluation.pages import numbers
from evaluation.pages.columns import Column, Record, Unused
from evaluation.pages.parts import Cell, Folded, Head, Part, Section, Table, Text


def section(columns: Sequence[Column], unused: Sequence[Unused]) -> Section:
    """Every file that was used, what made it, and every file that was not used and why."""
    found = [(run, column, record) for run, column in enumerate(columns) for record in column.records.values()]
    names = ("run", "evaluation", "finished", "seed", "commit", "model", "file")
    rows = [(column.name, _origin(record)) for _, column, record in found]
    parts: list[Part] = [Table("Stored results", [Head(name) for name in names], rows)]
    commands: list[Part] = [
        Text(f"{column.name}, {record.kind}: {shlex.join(record.result.command)}") for _, column, record in found
    ]
    parts.append(Folded("Commands", commands))
    parts.append(Folded("Versions", [_versions([record for *_, record in found])]))
    parts.append(Folded("Fingerprints of data and models", [_fingerprints([record for *_, record in found])]))
    if unused:
        left = [(str(each.path), [Cell(each.reason)]) for each in unused]
        parts.append(Table("Files that could not be used", [Head("file"), Head("why")], left))
    return Section("Where the numbers come from", parts)


def _origin(record: Record) -> list[Cell]:
    result = record.result
    commit = result.commit or {}
    dirty = " + changes" if commit.get("dirty") else ""
    return [
        Cell(record.kind),
        Cell(str(result.finished)),
        Cell(numbers.setting(result.seed)),
        Cell(f"{commit['hash'][:12]}{dirty}") if commit.get("hash") else Cell(),
        Cell(str((result.model or {}).get("sha256", numbers.MISSING))[:12]),
        Cell(str(record.path)),
    ]


def _versions(records: Sequence[Record]) -> Table:
    """A row for each package; several versions where results were made with several."""
    rows = []
    for name in dict.fromkeys(name for record in records for name in record.result.versions):
        used = dict.fromkeys(record.result.versions.get(name) or numbers.MISSING for record in records)
        rows.append((name, [Cell(", ".join(used))]))
    return Table("Versions that made the results", [Head("package"), Head("version")], rows)


def _fingerprints(records: Sequence[Record]) -> Table:
    """SHA-256 of every data source and model."""
    pairs = {(address, print_) for record in records for address, print_ in record.result.data.items()}
    for record in records:
        model = record.result.model or {}
        if model.get("sha256"):
            pairs.add((str(model.get("address")), str(model["sha256"])))
    rows = [(address, [Cell(print_)]) for address, print_ in sorted(pairs)]
    return Table("SHA-256", [Head("what"), Head("fingerprint")], rows)


def everything_published() -> Section:
    """All published tables, whether or not a figure of this page stands beside them."""
    parts: list[Part] = []
    for table in published.TABLES:
        heads = [Head("method"), *(Head(str(quantity).replace("_", " ")) for quantity in table.quantities)]
        rows = [
            (method, [Cell() if value is None else _published(table, method, at) for at, value in enumerate(values)])
            for method, values in table.rows.items()
        ]
        caption = f"{table.name}: {table.title}. {table.setting}; {table.unit}. Source: {table.source}."
        notes: list[Part] = [Text(caveat) for caveat in table.caveats]
        parts.append(Folded(f"{table.name}: {table.title}", [Table(caption, heads, rows), *notes]))
    return Section("Published tables", parts)


def _published(table: published.Table, method: str, at: int) -> Cell:
    value, error = table.value(method, table.quantities[at])
    return Cell(f"{value:g}", "" if error is None else f"± {error:g}")
