"""Numbers that compare, as pandas frames, and what a page shows of them: a table, a chart, published numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from evaluation import published
from evaluation.pages import numbers
from evaluation.pages.columns import Column
from evaluation.pages.parts import MISSING, Best, Chart, Head, Line, Note, Table


@dataclass(frozen=True)
class Score:
    """One number of one run."""

    run: int
    value: float
    error: float | None = None
    """Its standard error."""
    samples: int | None = None
    """How many it is a mean over."""
    tokens: int | None = None
    """The length or position that it is of."""
    row: str = ""
    """Its row's name, where that is not its length."""
    detail: str = ""
    """Small print."""
    documents: Mapping[str, float] = field(default_factory=dict)
    """The same for each document, where that is known."""

    @property
    def name(self) -> str:
        """Its row's."""
        return self.row or numbers.length(self.tokens or 0)


@dataclass(frozen=True)
class Scores:
    """Numbers in rows that compare across runs."""

    title: str
    corner: str
    """What a row is."""
    found: Sequence[Score]
    heads: Sequence[Head]
    """Of the runs."""
    places: int | None = None
    """Decimals where no standard error is known; None: four significant digits."""
    lowest: bool = False
    """The lowest is best, and marked."""
    unlike: str = ""
    """What is said with the rows in which not all are means over the same number of samples."""

    def frame(self, of: str = "value", by: str = "tokens") -> pd.DataFrame:
        """A row for each length or, by ``name``, for each row of the table, in order; a column for each run."""
        order = sorted(self.found, key=lambda each: math.inf if each.tokens is None else each.tokens)
        frame = pd.DataFrame([{**vars(each), "name": each.name} for each in order]).dropna(subset=by)
        frame = frame.drop_duplicates([by, "run"], keep="last")
        wide = frame.pivot(index=by, columns="run", values=of)
        return wide.reindex(index=frame[by].unique(), columns=[head.run for head in self.heads])

    def table(self, beside: "Beside | None" = None, *, folded: bool = False) -> list[Table | Note]:
        """With the notes that belong to it, and published columns."""
        theirs = beside or Beside()
        finite = self.frame(by="name").replace([math.inf, -math.inf], math.nan)
        least = finite.min(axis=1).where(finite.nunique(axis=1) > 1)
        counts = self.frame("samples", by="name").nunique(axis=1)
        differ = list(counts.index[counts > 1]) if self.unlike else []
        cells = {name: dict.fromkeys(finite, MISSING) for name in finite.index}
        for each in self.found:
            said = [numbers.measured(each.value, each.error, self.places)]
            said += [f"({each.detail})"] if each.detail else []
            said += [f"(n = {each.samples:,})"] if each.name in differ and each.samples and not each.detail else []
            best = self.lowest and each.value == least[each.name]
            cells[each.name][each.run] = (Best if best else str)(" ".join(said))
        order = theirs.rows if theirs.rows and theirs.heads else list(cells)
        none = dict.fromkeys(finite, MISSING)
        rows = [(name, [*cells.get(name, none).values(), *theirs.cells.get(name, ())]) for name in order]
        notes = [Note(self.unlike.format(rows=", ".join(differ)), loud=True)] if differ else []
        heads = [Head(self.corner), *self.heads, *theirs.heads]
        return [Table(self.title, heads, rows, numeric=True, folded=folded), *notes, *theirs.notes]

    def chart(self, title: str, x_label: str, y_label: str, *, log: bool = False, mark: int | None = None) -> Chart:
        """A line for each run over its tokens; ``log``: along lengths, and up where numbers are far apart. What is of a
        stretch of tokens is drawn in its middle."""
        frame = self.frame()
        middle = 0 if log or len(frame) < 2 else (frame.index[1] - frame.index[0]) / 2
        lines = []
        for head in self.heads:
            points = sorted(
                (each.tokens + middle, each.value)
                for each in self.found
                if each.run == head.run and each.tokens is not None
            )
            lines.append(Line(head.text, points, head.run or 0))
        shown = frame.where((frame > 0) & (frame < math.inf))
        far = bool(shown.max().max() > 4 * shown.min().min())
        return Chart(title, x_label, y_label, lines, x_tokens=True, x_log=log, y_log=log and far, mark=mark)


def heads(columns: Sequence[Column], runs: Sequence[int]) -> list[Head]:
    """One for each run."""
    return [Head(columns[run].name, run) for run in runs]


@dataclass(frozen=True)
class Beside:
    """The published columns of one table."""

    heads: Sequence[Head] = ()
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Row -> its cells."""
    notes: Sequence[Note] = ()
    rows: Sequence[str] = ()
    """In order; without them the table's own."""


def beside(
    wanted: Mapping[str, published.Quantity],
    *,
    places: int,
    convention: str | None = None,
    scoring: str = "",
) -> Beside:
    """Published numbers in columns of their own; none where nothing is published.

    They stand beside a row only where task, metric, length and, of perplexity, the convention are the row's. With which
    stride and options it was scored may differ, and is then said.

    Args:
        wanted: row -> its quantity; the rows of the table, in order.
        places: decimals that were published.
        convention: by which the rows' perplexity was scored.
        scoring: its stride and options.
    """
    found = list(published.tables_for(wanted.values()))
    shown = [table for table in found if table.convention in (None, convention)]
    pairs = [(table, method) for table in shown for method in table.rows]
    over = [Head(method, published=f"published, {table.setting} ({table.name})") for table, method in pairs]
    cells = {
        row: [as_published(*table.value(method, each), f".{places}f") for table, method in pairs]
        for row, each in wanted.items()
    }
    notes = []
    for table in found:
        name = f"{table.name} of {table.source}"
        if table not in shown:
            said = f"{name} has numbers of this text by another convention, {table.convention}"
            notes.append(Note(f"{said}: they are not the same quantity and are left out."))
            continue
        said = f"Published, not measured here, and of another model: {name} ({table.title}; {table.setting})."
        notes.append(Note(" ".join([said, *table.caveats])))
        if table.convention is not None and table.scoring != scoring:
            said = f"{table.name} was scored with {table.scoring}, the runs with {scoring or 'the defaults'}"
            notes.append(Note(f"{said}: its numbers may differ for that alone.", loud=True))
    return Beside(over, cells, notes, list(wanted))


def as_published(value: float | None, error: float | None, digits: str) -> str:
    """A published number and its standard error, with the digits it was published with."""
    return MISSING if value is None else f"{value:{digits}}" + ("" if error is None else f" ± {error:{digits}}")
