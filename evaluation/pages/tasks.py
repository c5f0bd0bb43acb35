"""Sections of tasks: SCROLLS, and the harness's tasks with their standard errors; published scores beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation import published
from evaluation.pages import beside, numbers
from evaluation.pages.columns import Column
from evaluation.pages.parts import Cell, Folded, Head, Note, Part, Section, Table

METRICS = {"f1": "F1", "exact_match": "exact match", "rouge": "ROUGE, geometric mean"}
ACCURACIES = ("acc", "acc_norm")


def scrolls(columns: Sequence[Column]) -> Section | None:
    """A row for each data set, a table for each split."""
    splits: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run, column in enumerate(columns):
        result = column.result("scrolls")
        if result is not None:
            splits.setdefault(str(result.figures.get("split")), {})[run] = result.figures["datasets"]
    parts: list[Part] = []
    for split, found in sorted(splits.items()):
        keys = {(name, each["metric"]): None for datasets in found.values() for name, each in datasets.items()}
        order = [quantity.task for quantity in published.TABLE_1.quantities]
        rows = sorted(keys, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key))
        entries = {
            key: [each if (each := sets.get(key[0])) and each["metric"] == key[1] else None for sets in found.values()]
            for key in rows
        }
        wanted = [published.Quantity(*key) for key in rows]
        labels = [f"{name}, {METRICS.get(metric, metric)}" for name, metric in rows]
        values = [[_score(each) for each in entries[key]] for key in rows]
        caption = f"SCROLLS, {split} split, 0 to 100; higher is better"
        parts += _table(caption, columns, list(found), labels, values, wanted)
        parts += _cut_examples(columns, found)
    return Section("SCROLLS", parts) if parts else None


@dataclass(frozen=True)
class _Score:
    """A number as it is written, and over how many samples."""

    cell: Cell
    samples: int | None


def _score(entry: Mapping[str, Any] | None) -> _Score:
    if entry is None:
        return _Score(Cell(), None)
    return _Score(numbers.measured(entry["score"], entry.get("standard_error"), 2), entry.get("examples"))


def _cut_examples(columns: Sequence[Column], found: Mapping[int, Mapping[str, Any]]) -> list[Note]:
    """What was cut of prompts that were too long."""
    who: dict[str, list[str]] = {}
    for run, datasets in found.items():
        cut = [
            f"{name} {each['cut_examples']:,} of {each['examples']:,} ({each.get('cut_tokens', 0):,} tokens)"
            for name, each in datasets.items()
            if each.get("cut_examples") and "examples" in each
        ]
        if cut:
            who.setdefault("; ".join(cut), []).append(columns[run].name)
    return [Note(f"Prompts that were cut, {', '.join(names)}: {cut}.") for cut, names in who.items()]


Row = tuple[str, str, str]
"""Task, metric, shots."""


def harness(columns: Sequence[Column]) -> Section | None:
    """A row for each task or group, metric and number of shots; groups first, their members folded."""
    found: dict[int, Mapping[str, Any]] = {}
    rows: dict[Row, dict[int, Mapping[str, Any]]] = {}
    members: set[str] = set()
    for run, column in enumerate(columns):
        result = column.result("harness")
        if result is None:
            continue
        found[run] = result.figures
        groups = result.figures.get("groups") or {}
        members |= {name for group in groups.values() for name in group.get("tasks") or []}
        for name, each in [*groups.items(), *result.figures["tasks"].items()]:
            rows.setdefault((name, str(each.get("metric")), str(each.get("shots"))), {})[run] = each
    if not rows:
        return None
    main = {row: entries for row, entries in rows.items() if row[0] not in members}
    folded = {row: entries for row, entries in rows.items() if row[0] in members}
    parts: list[Part] = []
    if main:
        parts += _tasks("Tasks of the harness, %; standard errors behind ±", columns, list(found), main)
    if folded:
        parts.append(Folded("Members of groups", _tasks("Members of groups, %", columns, list(found), folded)))
    for run, figures in found.items():
        cut = figures.get("cut") or {}
        if cut.get("requests"):
            said = f"{columns[run].name}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens."
            parts.append(Note(said, loud=True))
    return Section("MMLU, ARC and other tasks", parts)


def _tasks(
    caption: str, columns: Sequence[Column], runs: Sequence[int], rows: Mapping[Row, Mapping[int, Mapping[str, Any]]]
) -> list[Table | Note]:
    labels = [
        ", ".join([name, metric] + ([] if shots == "None" else [f"{shots} shots"])) for name, metric, shots in rows
    ]
    values = [[_accuracy(entries.get(run)) for run in runs] for entries in rows.values()]
    return _table(caption, columns, runs, labels, values, [_quantity(*row) for row in rows])


def _accuracy(entry: Mapping[str, Any] | None) -> _Score:
    if entry is None:
        return _Score(Cell(), None)
    return _Score(numbers.measured(entry["value"], entry.get("standard_error"), 2, scale=100), entry.get("samples"))


def _quantity(task: str, metric: str, shots: str) -> published.Quantity:
    """What a published table would call it; those there are were made without shots."""
    shown = metric if shots in ("0", "None") else f"{metric}, {shots} shots"
    return published.Quantity(task.removeprefix("tape_"), "accuracy" if shown in ACCURACIES else shown)


def _table(
    caption: str,
    columns: Sequence[Column],
    runs: Sequence[int],
    labels: Sequence[str],
    values: Sequence[Sequence[_Score]],
    wanted: Sequence[published.Quantity],
) -> list[Table | Note]:
    """A table with published columns, and a note where numbers of samples differ."""
    others = beside.find(wanted, places=2)
    rows, unlike = [], []
    for at, (label, scores) in enumerate(zip(labels, values, strict=True)):
        counts = {score.samples for score in scores if score.samples is not None}
        cells = [score.cell for score in scores]
        if len(counts) > 1:
            unlike.append(label)
            cells = [
                score.cell
                if score.samples is None
                else replace(score.cell, detail=f"{score.cell.detail} n = {score.samples:,}".strip())
                for score in scores
            ]
        rows.append((label, [*cells, *others.cells[at]]))
    heads = [Head("task"), *(Head(columns[run].name, run) for run in runs), *others.heads]
    notes = [Note(f"Not the same number of samples (n): {'; '.join(unlike)}.", loud=True)] if unlike else []
    return [Table(caption, heads, rows), *notes, *others.notes]
