"""Numbers that compare, as pandas frames, and what a page shows of them: a table, a chart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from evaluation.pages import numbers
from evaluation.pages.numbers import MISSING
from evaluation.pages.parts import Best, Chart, Head, Line, Note, PageTable

METRICS = {"f1": "F1", "exact_match": "exact match", "rouge": "ROUGE, geometric mean"}


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
    names: Sequence[str] | Mapping[int, str]
    """Of the runs, by their numbers."""
    places: int | None = None
    """Decimals where no standard error is known; None: four significant digits."""
    lowest: bool = False
    """The lowest is best, and marked."""
    unlike: str = ""
    """What is said with the rows in which not all are means over the same number of samples."""

    @property
    def heads(self) -> list[Head]:
        """One for each run that has a number."""
        return [Head(self.names[run], run) for run in dict.fromkeys(each.run for each in self.found)]

    def frame(self, of: str = "value", by: str = "tokens") -> pd.DataFrame:
        """Return a row for each length or, by ``name``, for each row of the table, in order; a column for each run."""
        frame = pd.DataFrame([{**vars(each), "name": each.name} for each in self.found]).dropna(subset=by)
        frame = frame.sort_values("tokens", kind="stable").drop_duplicates([by, "run"], keep="last")
        wide = frame.pivot(index=by, columns="run", values=of)
        return wide.reindex(index=frame[by].unique(), columns=[head.run for head in self.heads])

    def table(self, *, folded: bool = False) -> list[PageTable | Note]:
        """With the note that belongs to it; ``folded``: shown on request."""
        finite = self.frame(by="name").replace([math.inf, -math.inf], math.nan)
        least = finite.min(axis=1).where(finite.nunique(axis=1) > 1)
        counts = self.frame("samples", by="name").nunique(axis=1)
        differ = list(counts.index[counts > 1]) if self.unlike else []
        cells = {name: dict.fromkeys(finite, MISSING) for name in finite.index}
        for each in self.found:
            cell = numbers.measured(each.value, each.error, self.places)
            if each.detail or (each.name in differ and each.samples):
                cell += f" ({each.detail or f'n = {each.samples:,}'})"
            best = self.lowest and each.value == least[each.name]
            cells[each.name][each.run] = Best(cell) if best else cell
        rows = [(name, [*own.values()]) for name, own in cells.items()]
        return [
            PageTable(self.title, [Head(self.corner), *self.heads], rows, numeric=True, folded=folded),
            *([Note(self.unlike.format(rows=", ".join(differ)), loud=True)] if differ else []),
        ]

    def chart(self, title: str, x_label: str, y_label: str, *, log: bool = False, mark: int | None = None) -> Chart:
        """Return a line for each run over its tokens; ``log``: along lengths, and up where numbers are far apart. What
        is of a stretch of tokens is drawn in its middle."""
        frame = self.frame()
        middle = 0 if log or len(frame) < 2 else (frame.index[1] - frame.index[0]) / 2
        lines = []
        for head in self.heads:
            own = {e.tokens + middle: e.value for e in self.found if e.run == head.run and e.tokens is not None}
            lines.append(Line(head.text, sorted(own.items()), head.run or 0))
        shown = frame.where((frame > 0) & (frame < math.inf))
        far = bool(shown.max().max() > 4 * shown.min().min())
        return Chart(title, x_label, y_label, lines, x_tokens=True, x_log=log, y_log=log and far, mark=mark)
