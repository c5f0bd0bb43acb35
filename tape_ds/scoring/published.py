"""What TAPE's paper (arXiv:2501.00712) published: the tables of ``published.yaml``, and what to know to read them.

Each table says what it was measured on and where its conventions differ from the usual; a page that shows such a number
beside one of ours says so too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

DATA = Path(__file__).with_suffix(".yaml")
Number = float | None
"""None: not published."""


@dataclass(frozen=True)
class Quantity:
    """What a number is of; two numbers may stand in one row only where this is the same."""

    task: str
    """Data set or benchmark, as this project names it."""
    metric: str
    length: int | None = None
    """Tokens of context; None where that is no variable."""

    def __str__(self) -> str:
        return " ".join([self.task, self.metric] + ([] if self.length is None else [f"{self.length:,}"]))


@dataclass(frozen=True)
class PublishedTable:
    """One published table, a row per method."""

    name: str
    """As the paper calls it."""
    setting: str
    """The model that was measured."""
    unit: str
    quantities: tuple[Quantity, ...]
    rows: Mapping[str, tuple[Number, ...]]
    """Method -> a number for each quantity."""
    convention: str | None = None
    """Of perplexity: how it was scored, as ``tape-ds evaluate perplexity`` names it."""
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for values in self.rows.values():
            assert len(values) == len(self.quantities), f"{self.name}: a number for each quantity"

    def value(self, method: str, wanted: Quantity) -> Number:
        """Return a number; None for what is not published."""
        return self.rows[method][self.quantities.index(wanted)] if wanted in self.quantities else None

    def places(self, wanted: Quantity) -> int:
        """Decimals that the paper prints of a quantity; of one that it does not print, those of its most exact one."""
        printed = [self.quantities.index(wanted)] if wanted in self.quantities else range(len(self.quantities))
        numbers = [repr(float(row[at] or 0)) for row in self.rows.values() for at in printed]
        decimals = [number.partition(".")[2] for number in numbers if "e" not in number]  # 1e-5 is written so
        return max((len(each) for each in decimals if each != "0"), default=0)


def _read() -> Iterator[PublishedTable]:
    for each in yaml.safe_load(DATA.read_text(encoding="utf-8")):
        each["quantities"] = tuple(Quantity(*quantity) for quantity in each["quantities"])
        each["rows"] = {method: tuple(values) for method, values in each["rows"].items()}
        yield PublishedTable(**each | {"caveats": tuple(each.get("caveats", ()))})


TABLES = tuple(_read())
"""Every published table, in the order of their names."""
TEXTS = {
    "proof_pile": re.compile(r"proof[-_]?pile", re.I),
    "pg19": re.compile(r"pg[-_]?19", re.I),
    "github": re.compile(r"((^|[/_.:-])github([-_]?test)?(\.\w+|/[^/]*)?|pile_set_name=github)$", re.I),
}
"""Published test set -> how a data spec of it looks."""


def find(name: str) -> PublishedTable:
    """Return the table that the paper calls so."""
    return next(table for table in TABLES if table.name == name)


def text_of(spec: str) -> str | None:
    """Return the published test set that a data spec names, if it names one."""
    data = re.sub(r"#[^?]*", "", spec)  # without what names a column
    return next((name for name, looks in TEXTS.items() if looks.search(data)), None)


def tables_for(wanted: Iterable[Quantity]) -> Iterator[PublishedTable]:
    """Tables that hold a number for one of the quantities."""
    asked = set(wanted)
    return (table for table in TABLES if asked & set(table.quantities))
