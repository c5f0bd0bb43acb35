"""An experiment's numbers beside the published ones, and how both were made."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table
from tools.experiment import published, readings
from tools.experiment.published import Number, PublishedTable, Quantity
from tools.experiment.readings import Numbers, Rows
from tools.experiment.table import PAPER

MISSING = "-"
WIDTH = 90
"""Characters of a line of code that the site shows."""
_WORD = re.compile(r"(?:'[^']*'|\S)+")
"""Of a command line: a quoted part has spaces."""


@dataclass(frozen=True)
class StoredSource:
    """A stored result that numbers were taken from, and what one has to know of it."""

    path: str
    """From the repository's top."""
    command: str
    """As it was typed."""
    hardware: str
    finished: str
    commit: str

    @classmethod
    def of(cls, path: Path, result: results.Result) -> "StoredSource":
        commit = (result.commit["hash"][:12] + ("-dirty" if result.commit["dirty"] else "")) if result.commit else ""
        return cls(shown(path), typed(result.command), machine(result.hardware), result.finished or "", commit)


def typed(command: Sequence[str]) -> str:
    """Return a stored command line as a user types it: results hold the script without what starts it."""
    first, *rest = command or [""]
    if not first.endswith(".py"):
        return shlex.join(command)
    name = Path(first).name
    if (ROOT / "launchers" / name).exists():
        return shlex.join(["deepspeed", f"launchers/{name}", *(w for w in rest if not w.startswith("--local_rank"))])
    package = "tools.experiments" if (ROOT / "tools" / "experiments" / name).exists() else "tools"
    return shlex.join(["python", "-m", f"{package}.{Path(first).stem}", *rest])


def machine(hardware: Mapping[str, Any]) -> str:
    """Return a machine in a few words: its GPUs, else its cores."""
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
    sources: tuple[StoredSource, ...] = ()
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
        """Return what :meth:`figures` stored; ``page`` explains it where it names none."""
        data = result.figures
        rows = {
            method: {Quantity(each["task"], each["metric"], each["length"]): each["value"] for each in numbers}
            for method, numbers in data["methods"].items()
        }
        sources = tuple(StoredSource(**each) for each in data["sources"])
        lists = (tuple(data["files"]), tuple(data["remarks"]))
        return cls(data["experiment"], data["setting"], rows, sources, *lists, data["scale"], data.get("page", page))


def tables_of(label: str) -> list[PublishedTable]:
    """Return what is published under a label."""
    return [table for table in published.TABLES if table.name.split(",")[0] == label]


def beside(label: str, ours: Measured, base: Path) -> str:
    """Published, ours, how ours was made, and what to know of both; no heading.

    ``base``: folder of the page that this is part of, from which its links lead.
    """
    tables = tables_of(label)
    parts = [] if tables else ["Nothing is published in numbers."]
    for table in tables:
        rows = {method: dict(zip(table.quantities, values, strict=True)) for method, values in table.rows.items()}
        parts += [f"{table.name}, published: {table.setting}; {table.unit}.", _numbers("published", rows, [table])]
    parts += [f"Ours: {ours.setting}."] if ours.rows or ours.files else []
    parts += [_numbers("ours", ours.rows, tables)] if ours.rows else []
    parts += [f"{'!' if path.endswith('.png') else ''}{link(path, base)}" for path in ours.files]
    parts.append(listed("Remarks", ours.remarks))
    parts.append(listed("Published", dict.fromkeys(each for table in tables for each in table.caveats)))
    parts.append(origin(ours.sources))
    return "\n\n".join(part for part in parts if part)


def _numbers(whose: str, rows: Mapping[str, Mapping[Quantity, Number]], tables: Sequence[PublishedTable]) -> str:
    """Return a row for each method, with the decimals of the published tables; without one, three."""

    def places(quantity: Quantity) -> int:
        having = [table for table in tables if quantity in table.quantities] or tables[:1]
        return having[0].places(quantity) if having else 3

    asked = readings.ordered(rows.values())
    lines = [[method, *(decimal(found.get(each), places(each)) for each in asked)] for method, found in rows.items()]
    return markdown_table([whose, *(str(each).replace("_", " ") for each in asked)], lines)


def decimal(value: Number, decimals: int) -> str:
    """With so many decimals; what they would round to 0, and what is below a thousandth, in powers of ten."""
    if value is None:
        return MISSING
    if value and abs(value) < max(1e-3, 0.5 * 10**-decimals):
        return f"{value:.1e}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e6 else f"{value:.1e}"


def listed(heading: str, lines: Iterable[str]) -> str:
    """Return a list under a word; nothing where there is nothing to say."""
    found = [f"- {line}" for line in lines]
    return "\n".join([f"{heading}:", "", *found]) if found else ""


def origin(sources: Sequence[StoredSource], commands: Iterable[str] = ()) -> str:
    """Return which commands made the numbers (none: those of the sources), on what, and when."""
    if not sources:
        return ""
    lines = dict.fromkeys(folded(command) for command in commands or [each.command for each in sources] if command)
    when = max(source.finished for source in sources)[:10]
    known = ", ".join(dict.fromkeys(source.commit for source in sources if source.commit))
    made = "; ".join(part for part in (hardware(sources), when, f"commit {known}" if known else "") if part)
    return "\n".join([f"Made by ({made}):" if made else "Made by:", "", *lines])


def folded(command: str) -> str:
    """Return a command as a block of code that is no wider than a page shows."""
    words = _WORD.findall(command)
    lines = [f"    {words[0]}"]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > WIDTH + 4:
            lines[-1] += " \\"
            lines.append(f"        {word}")
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)


def hardware(sources: Sequence[StoredSource]) -> str:
    """Return the machines of the sources."""
    return "; ".join(dict.fromkeys(source.hardware for source in sources if source.hardware))


def link(path: str, base: Path) -> str:
    """To a file of ours, from the folder of a page."""
    return f"[{Path(path).stem.replace('_', ' ')}]({os.path.relpath(ROOT / path, base)})"


def shown(path: Path) -> str:
    """Return a path from the repository's top, where it lies in it."""
    whole = path.absolute()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else str(path)


def mean(rows: Sequence[Numbers]) -> Numbers:
    """Of several runs' numbers, those that all of them have."""
    return {each: sum(own[each] for own in rows) / len(rows) for each in rows[0] if all(each in own for own in rows)}
