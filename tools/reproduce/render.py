"""An experiment's numbers beside the published ones: as markdown for people, as a result of the schema for programs."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluation.published import Number, Quantity, Table
from tape_ds import results
from tape_ds.markdown_table import markdown_table
from tools.reproduce import running
from tools.reproduce.experiment import ROOT, Experiment, Form, Measured, Place, Source

MISSING = "-"
OURS, PUBLISHED = "ours", "published"


def markdown(experiment: Experiment, setting: str, ours: Measured, remarks: Sequence[str], base: Path) -> str:
    """Published and ours, how ours was made, and what to know of both; no heading.

    ``base``: folder of the page that this is part of, from which its links lead.
    """
    parts = [part for table in experiment.tables for part in _tables(table, setting, ours)]
    if not experiment.tables:
        parts.append(f"Nothing is published in numbers.{f' Ours: {setting}.' if ours else ''}")
        parts += [_alone(ours)] if ours.values else []
    parts += [f"{'!' if path.suffix == '.png' else ''}{link(path, base)}" for path in ours.files]
    parts.append(told("Remarks", remarks))
    parts.append(told("Published", dict.fromkeys(each for table in experiment.tables for each in table.caveats)))
    parts.append(origin(ours.sources))
    return "\n\n".join(part for part in parts if part) + "\n"


def _tables(table: Table, setting: str, ours: Measured) -> list[str]:
    """One table where a quantity of ours is published, else two, one below the other."""
    theirs = f"{table.name}, published: {table.setting}; {table.unit}."
    own = [quantity for quantity in ours.quantities if any(quantity in numbers for numbers in ours.values.values())]
    if set(own) & set(table.quantities):
        asked = [*table.quantities, *(each for each in own if each not in table.quantities and _belongs(each, table))]
        rows = [
            row
            for method in dict.fromkeys([*table.rows, *ours.values])  # published ones first, in the paper's order
            for row in (
                [method, PUBLISHED, *_published_cells(table, method, asked)],
                [method, OURS, *_cells(ours.values.get(method, {}), asked, table)],
            )
            if any(cell != MISSING for cell in row[2:])
        ]
        return [f"{theirs} Ours: {setting}.", markdown_table(["", "whose", *map(head, asked)], rows)]
    published = [[method, *_published_cells(table, method, table.quantities)] for method in table.rows]
    parts = [theirs, markdown_table(["published", *map(head, table.quantities)], published)]
    if own:
        rows = [[method, *_cells(numbers, own, table)] for method, numbers in ours.values.items()]
        parts += [f"Ours: {setting}.", markdown_table(["ours", *map(head, own)], rows)]
    return parts


def _alone(ours: Measured) -> str:
    """Ours where nothing is published beside it."""
    header = ["ours", *map(head, ours.quantities)]
    lines = [
        [method, *(number(numbers.get(each), 3) for each in ours.quantities)] for method, numbers in ours.values.items()
    ]
    return markdown_table(header, lines)


def _belongs(quantity: Quantity, table: Table) -> bool:
    """Whether a quantity that is not published is of a kind with those of the table: Table 8 has two halves."""
    return quantity.task in {each.task for each in table.quantities}


def head(quantity: Quantity) -> str:
    """A column's head."""
    return str(quantity).replace("_", " ")


def _published_cells(table: Table, method: str, quantities: Iterable[Quantity]) -> list[str]:
    if method not in table.rows:
        return [MISSING for _ in quantities]
    return [number(table.value(method, quantity)[0], places(table, quantity)) for quantity in quantities]


def _cells(numbers: Mapping[Quantity, float], quantities: Iterable[Quantity], table: Table) -> list[str]:
    return [number(numbers.get(quantity), places(table, quantity)) for quantity in quantities]


def places(table: Table, quantity: Quantity) -> int:
    """Decimals that the paper prints of a quantity; of one that it does not print, those of its most exact one."""
    asked = [quantity] if quantity in table.quantities else list(table.quantities)
    values = [value for method in table.rows for each in asked if (value := table.value(method, each)[0]) is not None]
    return max((_places(value) for value in values), default=2)


def _places(value: float) -> int:
    """Of 3.10: 1; of 1e-4: 0, as it is written otherwise."""
    text = repr(float(value))
    return 0 if "e" in text or text.endswith(".0") else len(text.partition(".")[2])


def number(value: Number, decimals: int) -> str:
    """With so many decimals; what they would round to 0, and what is below a thousandth, in powers of ten."""
    if value is None:
        return MISSING
    if value and abs(value) < max(1e-3, 0.5 * 10**-decimals):
        return f"{value:.1e}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e6 else f"{value:.1e}"


def told(head_: str, lines: Iterable[str]) -> str:
    """A list under a word; nothing where there is nothing to say."""
    found = [f"- {line}" for line in lines]
    return "\n".join([f"{head_}:", "", *found]) if found else ""


def origin(sources: Sequence[Source]) -> str:
    """Which commands made the numbers, on what, and when."""
    if not sources:
        return ""
    lines = [f"    {command}" for command in commands(sources)]
    when = max(source.finished for source in sources)[:10]
    commits = ", ".join(dict.fromkeys(source.commit for source in sources if source.commit))
    made = "; ".join(part for part in (hardware(sources), when, f"commit {commits}" if commits else "") if part)
    return "\n".join([f"Made by ({made}):" if made else "Made by:", "", *lines])


def commands(sources: Sequence[Source]) -> tuple[str, ...]:
    """The commands behind them, each once."""
    return tuple(dict.fromkeys(source.command for source in sources if source.command))


def hardware(sources: Sequence[Source]) -> str:
    """The machines of the sources."""
    return "; ".join(dict.fromkeys(source.hardware for source in sources if source.hardware))


def link(path: Path, base: Path) -> str:
    """To a file of ours, from the folder of a page."""
    return f"[{path.stem.replace('_', ' ')}]({os.path.relpath(ROOT / path, base)})"


def shown(path: Path) -> str:
    """A path from the repository's top, where it lies in it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def as_result(
    begun: results.Result, experiment: Experiment, scale: str, form: Form, ours: Measured, place: Place
) -> results.Result:
    """Ours as a stored result; :func:`measured` reads it back."""
    figures: dict[str, Any] = {
        "experiment": experiment.name,
        "scale": scale,
        "setting": form.setting,
        "methods": {
            method: [{**asdict(quantity), "value": value} for quantity, value in numbers.items()]
            for method, numbers in ours.values.items()
        },
        "files": [shown(path) for path in ours.files],
        "remarks": list(form.remarks),
        "sources": [{**asdict(source), "path": shown(source.path)} for source in ours.sources],
        "steps": [
            {"command": shlex.join(step.command(place)), "seconds": seconds}
            for step, seconds in zip(form.steps, running.seconds(form.steps, place).values(), strict=True)
        ],
    }
    return begun.finish(figures)


def measured(result: results.Result) -> Measured:
    """What :func:`as_result` stored."""
    values = {
        method: {Quantity(each["task"], each["metric"], each["length"]): each["value"] for each in numbers}
        for method, numbers in result.figures["methods"].items()
    }
    sources = [Source(**{**each, "path": Path(each["path"])}) for each in result.figures["sources"]]
    return Measured(values, tuple(sources), tuple(Path(each) for each in result.figures["files"]))
