"""Numbers published in TAPE's paper (arXiv:2501.00712): the tables of ``published.yaml``.

Each table names the setting and, if its conventions differ from the usual ones, caveats, which every page shows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import yaml

# None: not published
Number = float | None


@dataclass(frozen=True)
class Quantity:
    """What a number measures; two numbers share a row only if this is equal."""

    task: str
    """Data set or benchmark, as this project names it."""
    metric: str
    length: int | None = None
    """Tokens of context, if it varies."""

    def __str__(self) -> str:
        """The name in tables and sentences."""
        words = [self.task, self.metric]
        if self.length is not None:
            words.append(f"{self.length:,}")
        return " ".join(words).replace("_", " ").strip()


@dataclass(frozen=True)
class PublishedTable:
    name: str
    """In the paper."""
    setting: str
    """The model that was measured."""
    unit: str
    quantities: tuple[Quantity, ...]
    rows: Mapping[str, Mapping[Quantity, Number]]
    """By method."""
    convention: str | None = None
    """Of perplexity, as ``python -m evaluation perplexity`` names it."""
    caveats: tuple[str, ...] = ()

    def places(self, quantity: Quantity) -> int:
        """Return the decimals that the paper prints of a quantity; of any other, the most it prints."""
        printed = (quantity,) if quantity in self.quantities else self.quantities
        most = 0
        for row in self.rows.values():
            for each in printed:
                decimals = repr(float(row[each] or 0)).partition(".")[2]
                # 25.0 is printed as 25, and 1.5e-05 says nothing about decimals
                if decimals != "0" and "e" not in decimals:
                    most = max(most, len(decimals))
        return most


def _tables() -> tuple[PublishedTable, ...]:
    tables = []
    for table in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")):
        quantities = tuple(starmap(Quantity, table.pop("quantities")))
        rows = {}
        for method, row in table.pop("rows").items():
            rows[method] = dict(zip(quantities, row, strict=True))
        caveats = tuple(table.pop("caveats", ()))
        tables.append(PublishedTable(**table, quantities=quantities, rows=rows, caveats=caveats))
    return tuple(tables)


TABLES = _tables()
# Published test set -> pattern of its data specs
TEXTS = {
    "proof_pile": re.compile(r"proof[-_]?pile", re.I),
    "pg19": re.compile(r"pg[-_]?19", re.I),
    "github": re.compile(
        r"((^|[/_.:-])github([-_]?test)?(\.\w+|/[^/]*)?|pile_set_name=github)$", re.I
    ),
}


def tables_of(label: str) -> list[PublishedTable]:
    """Return the tables with a label such as ``Table 2``."""
    return [table for table in TABLES if table.name.split(",")[0] == label]


def text_of(spec: str) -> str | None:
    """Return the published test set that a data spec names, if it names one."""
    # without the name of a column, which may be any word
    data = re.sub(r"#[^?]*", "", spec)
    for name, pattern in TEXTS.items():
        if pattern.search(data):
            return name
    return None
