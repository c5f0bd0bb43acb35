"""An experiment's numbers beside the published ones, and how both were made."""

import csv
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evaluation import published
from evaluation.published import Number, Quantity, Table
from tape_ds import results
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table
from tools.experiment import readings
from tools.experiment.readings import Numbers, Rows
from tools.experiment.runs import ROOMS
from tools.experiment.table import PAPER

MISSING = "-"
OURS, PUBLISHED = "ours", "published"


@dataclass(frozen=True)
class Source:
    """A stored result that numbers were taken from, and what one has to know of it."""

    path: str
    """From the repository's top."""
    command: str
    """As it was typed."""
    hardware: str
    finished: str
    commit: str

    @classmethod
    def of(cls, path: Path, result: results.Result | None) -> "Source":
        """What a result says of itself; the first row of a benchmark's table says what holds for all of them."""
        if result is not None:
            commit = (
                (result.commit["hash"][:12] + ("-dirty" if result.commit["dirty"] else "")) if result.commit else ""
            )
            return cls(shown(path), typed(result.command), machine(result.hardware), result.finished or "", commit)
        with open(path, encoding="utf-8", newline="") as lines:
            row = next(csv.DictReader(lines))
        device = "cpu" if row["chip"] == "cpu" else "cuda"
        command = f"python -m benchmarks table4 --device {device} --dtype {row['dtype']} --repeats {row['repeats']}"
        return cls(shown(path), command, row["device"], row["date"], row["commit"])


def typed(command: Sequence[str]) -> str:
    """A stored command line as a user types it: results hold the script without what starts it."""
    first, *rest = command or [""]
    if not first.endswith(".py"):
        return shlex.join(command)
    script = next((f"{room}/{Path(first).name}" for room in ROOMS if (ROOT / room / Path(first).name).exists()), first)
    module = f"tools.{Path(script).stem}"
    if script.startswith("tools/") and f"python -m {module}" in (ROOT / script).read_text(encoding="utf-8"):
        return shlex.join(["python", "-m", module, *rest])
    starts = "deepspeed" if script.startswith("launchers/") else "python"
    return shlex.join([starts, script, *(word for word in rest if not word.startswith("--local_rank"))])


def machine(hardware: Mapping[str, Any]) -> str:
    """A machine in a few words: its GPUs, else its cores."""
    gpus = [str(gpu["name"]) for gpu in hardware.get("gpus") or []]
    if gpus:
        return " + ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    return f"{hardware.get('cpu')}, {hardware.get('cores')} cores"


@dataclass(frozen=True)
class Measured:
    """Ours: one measurement of an experiment."""

    experiment: str
    setting: str
    rows: Rows
    sources: tuple[Source, ...] = ()
    files: tuple[str, ...] = ()
    """Pictures and pages that are part of it, from the repository's top."""
    remarks: tuple[str, ...] = ()
    scale: str | None = None
    """None: other commands than the experiment's made it."""
    page: str = ""
    """What explains it, from ``docs/results``."""

    @property
    def commands(self) -> tuple[str, ...]:
        """What to type for it."""
        if self.scale is None:
            return tuple(dict.fromkeys(source.command for source in self.sources if source.command))
        return (f"python -m tools.experiment {self.experiment}{' --scale paper' if self.scale == PAPER else ''}",)

    def figures(self) -> dict[str, Any]:
        """For the stored result; :meth:`of` reads it back."""
        methods = {
            method: [{**asdict(quantity), "value": value} for quantity, value in numbers.items()]
            for method, numbers in self.rows.items()
        }
        own = {name: each for name, each in vars(self).items() if name not in ("rows", "sources")}
        return {**own, "methods": methods, "sources": [asdict(source) for source in self.sources]}

    @classmethod
    def of(cls, result: results.Result, page: str = "") -> "Measured":
        """What :meth:`figures` stored; ``page`` explains it where it names none."""
        data = result.figures
        rows = {
            method: {Quantity(each["task"], each["metric"], each["length"]): each["value"] for each in numbers}
            for method, numbers in data["methods"].items()
        }
        sources = tuple(Source(**each) for each in data["sources"])
        lists = (tuple(data["files"]), tuple(data["remarks"]))
        return cls(data["experiment"], data["setting"], rows, sources, *lists, data["scale"], data.get("page", page))


def tables_of(label: str) -> list[Table]:
    """What is published under a label; the halves of one table have quantities of their own."""
    found = [table for table in published.TABLES if table.name.split(",")[0] == label]
    return found[:1] + [
        replace(table, quantities=tuple(map(readings.halved, table.quantities)))
        if set(table.quantities) & set(found[0].quantities)
        else table
        for table in found[1:]
    ]


def beside(label: str, ours: Measured, base: Path) -> str:
    """Published and ours, how ours was made, and what to know of both; no heading.

    ``base``: folder of the page that this is part of, from which its links lead.
    """
    tables = tables_of(label)
    parts = [part for table in tables for part in _tables(table, ours)]
    if not tables:
        parts.append(f"Nothing is published in numbers.{f' Ours: {ours.setting}.' if ours.rows or ours.files else ''}")
        parts += [_alone(ours.rows)] if ours.rows else []
    parts += [f"{'!' if path.endswith('.png') else ''}{link(path, base)}" for path in ours.files]
    parts.append(listed("Remarks", ours.remarks))
    parts.append(listed("Published", dict.fromkeys(each for table in tables for each in table.caveats)))
    parts.append(origin(ours.sources))
    return "\n\n".join(part for part in parts if part)


def _tables(table: Table, ours: Measured) -> list[str]:
    """One table where a quantity of ours is published, else two, one below the other."""
    theirs = f"{table.name}, published: {table.setting}; {table.unit}."
    own = readings.ordered(ours.rows)
    if set(own) & set(table.quantities):
        tasks = {each.task for each in table.quantities}  # of a kind with them: Table 8 has two halves
        asked = [*table.quantities, *(each for each in own if each not in table.quantities and each.task in tasks)]
        rows = [
            row
            for method in dict.fromkeys([*table.rows, *ours.rows])  # published ones first, in the paper's order
            for row in (
                [method, PUBLISHED, *_cells(_published(table, method), asked, table)],
                [method, OURS, *_cells(ours.rows.get(method, {}), asked, table)],
            )
            if any(cell != MISSING for cell in row[2:])
        ]
        return [f"{theirs} Ours: {ours.setting}.", markdown_table(["", "whose", *map(head, asked)], rows)]
    parts = [theirs, _whole(PUBLISHED, {each: _published(table, each) for each in table.rows}, table.quantities, table)]
    return [*parts, f"Ours: {ours.setting}.", _whole(OURS, ours.rows, own, table)] if own else parts


def _whole(whose: str, rows: Mapping[str, Mapping[Quantity, Number]], asked: Sequence[Quantity], table: Table) -> str:
    lines = [[method, *_cells(numbers, asked, table)] for method, numbers in rows.items()]
    return markdown_table([whose, *map(head, asked)], lines)


def _alone(rows: Rows) -> str:
    """Ours where nothing is published beside it."""
    asked = readings.ordered(rows)
    lines = [[method, *(decimal(numbers.get(each), 3) for each in asked)] for method, numbers in rows.items()]
    return markdown_table([OURS, *map(head, asked)], lines)


def head(quantity: Quantity) -> str:
    """A column's head."""
    return str(quantity).replace("_", " ")


def _published(table: Table, method: str) -> dict[Quantity, Number]:
    return {each: table.value(method, each) for each in table.quantities} if method in table.rows else {}


def _cells(numbers: Mapping[Quantity, Number], asked: Iterable[Quantity], table: Table) -> list[str]:
    return [decimal(numbers.get(each), table.places(each)) for each in asked]


def decimal(value: Number, decimals: int) -> str:
    """With so many decimals; what they would round to 0, and what is below a thousandth, in powers of ten."""
    if value is None:
        return MISSING
    if value and abs(value) < max(1e-3, 0.5 * 10**-decimals):
        return f"{value:.1e}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e6 else f"{value:.1e}"


def listed(heading: str, lines: Iterable[str]) -> str:
    """A list under a word; nothing where there is nothing to say."""
    found = [f"- {line}" for line in lines]
    return "\n".join([f"{heading}:", "", *found]) if found else ""


def origin(sources: Sequence[Source]) -> str:
    """Which commands made the numbers, on what, and when."""
    if not sources:
        return ""
    lines = dict.fromkeys(f"    {source.command}" for source in sources if source.command)
    when = max(source.finished for source in sources)[:10]
    known = commits(sources)
    made = "; ".join(part for part in (hardware(sources), when, f"commit {known}" if known else "") if part)
    return "\n".join([f"Made by ({made}):" if made else "Made by:", "", *lines])


def hardware(sources: Sequence[Source]) -> str:
    """The machines of the sources."""
    return "; ".join(dict.fromkeys(source.hardware for source in sources if source.hardware))


def commits(sources: Sequence[Source]) -> str:
    """The commits that the sources are of."""
    return ", ".join(dict.fromkeys(source.commit for source in sources if source.commit))


def link(path: str, base: Path) -> str:
    """To a file of ours, from the folder of a page."""
    return f"[{Path(path).stem.replace('_', ' ')}]({os.path.relpath(ROOT / path, base)})"


def shown(path: Path) -> str:
    """A path from the repository's top, where it lies in it."""
    whole = path.absolute()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else str(path)


def mean(rows: Sequence[Numbers]) -> Numbers:
    """Of several runs' numbers, those that all of them have."""
    return {each: sum(own[each] for own in rows) / len(rows) for each in rows[0] if all(each in own for own in rows)}
