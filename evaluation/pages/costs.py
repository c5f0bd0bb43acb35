"""The section of cost: tokens, time, memory and the machine, of training and of each evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.pages import numbers
from evaluation.pages.columns import NEEDED, RUN, Column, Record
from evaluation.pages.parts import Cell, Grid, Head, Note, Part, Section, Table, Text
from evaluation.pages.settings import flatten

TRAINING = ("tokens", "tokens_per_second", "peak_memory_bytes", "steps", "skipped_steps")
RESUMED = "Times are of the last start: of something that was interrupted, its last part."
PLACES = ("processor", "processes")


def section(columns: Sequence[Column]) -> Section | None:
    """A table for training and one for each kind of evaluation."""
    tables: list[Table] = []
    notes: list[Part] = []
    for kind in NEEDED:
        found = {run: record for run, column in enumerate(columns) if (record := column.records.get(kind))}
        if found:
            table, note = _table(columns, kind, found)
            tables.append(table)
            notes += note
    return Section("Cost", [Text(RESUMED), Grid(tables), *notes]) if tables else None


def _table(columns: Sequence[Column], kind: str, found: Mapping[int, Record]) -> tuple[Table, list[Note]]:
    facts = {run: _facts(kind, record) for run, record in found.items()}
    names = dict.fromkeys(name for each in facts.values() for name in each)
    rows = [(_called(name), [Cell(_shown(name, each.get(name))) for each in facts.values()]) for name in names]
    title = "training" if kind == RUN else kind
    heads = [Head(title), *(Head(columns[run].name, run) for run in found)]
    alike = len({tuple(each.get(name) for name in PLACES) for each in facts.values()}) == 1
    said = f"{title}: not the same machine or number of processes; times do not compare."
    return Table(f"Cost of {title}", heads, rows), [] if alike else [Note(said, loud=True)]


def _facts(kind: str, record: Record) -> dict[str, Any]:
    """Figures of cost, under names whose endings say their unit."""
    figures, machine = record.result.figures, record.result.hardware
    own = {name: figures.get(name) for name in TRAINING} if kind == RUN else flatten(figures.get("cost") or {})
    gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
    processor = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or machine.get("cpu")
    own = {name: value for name, value in own.items() if isinstance(value, (int, float, str))}
    return {
        "seconds": record.seconds,
        **own,
        "processor": processor,
        "cores": machine.get("cores"),
        "processes": machine.get("processes"),
    }


def _called(name: str) -> str:
    """``peak_memory_bytes`` -> ``peak memory``; the unit stands with the number."""
    if name == "seconds":
        return "time"
    if name.endswith("_per_second"):
        return name.removesuffix("_per_second").replace("_", " ") + "/s"
    return name.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return numbers.setting(value)
    if name.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    if name.endswith("seconds"):
        return numbers.duration(float(value))
    if name.endswith("_per_second"):
        return numbers.significant(float(value), 3)
    return f"{value:,}" if isinstance(value, int) else numbers.significant(value)
