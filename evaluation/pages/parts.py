"""What a page is made of, whatever it is written as. Strings are plain text; the templates escape them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}
"""matplotlib's name of a run's marker -> the same as a letter."""
COLOURS = 8
"""Runs with colours of their own, ``--c0`` on in page.css; later ones use them again, dashed."""


class Best(str):
    """A cell of a table that is the best of its row."""


@dataclass(frozen=True)
class Note:
    """A paragraph; ``loud`` where it says that numbers do not compare."""

    kind: ClassVar = "note"
    text: str
    loud: bool = False


@dataclass(frozen=True)
class Head:
    """One column of a table."""

    text: str
    run: int | None = None
    """Number of the run it shows, which decides its colour and marker; None: of no run."""


@dataclass(frozen=True)
class PageTable:
    """Rows of cells under heads; the first cell of a row is its name."""

    kind: ClassVar = "table"
    caption: str
    heads: Sequence[Head]
    """One for each cell of a row, the names' own first."""
    rows: Sequence[tuple[str, Sequence[str]]]
    numeric: bool = False
    """Cells are numbers: never broken, and one below the other."""
    folded: bool = False
    """Shown on request."""
    run: int | None = None
    """The run that all of it is of: cells are shares such as 4/5, and coloured."""

    @property
    def wide(self) -> bool:
        """Whether a phone's screen, 46 letters, is too narrow for it, the first column being broken: then each row
        becomes a block of lines."""
        columns = zip([head.text for head in self.heads[1:]], *(cells for _, cells in self.rows), strict=True)
        return self.run is None and 12 + sum(2 + max(map(len, column)) for column in columns) > 46


@dataclass(frozen=True)
class Line:
    """A line of a chart: ``run`` decides colour, dash and marker."""

    label: str
    points: Sequence[tuple[float, float]]
    """Ascending in x; a y that is not finite leaves a gap."""
    run: int


@dataclass(frozen=True)
class Chart:
    """Lines over an axis."""

    kind: ClassVar = "chart"
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_tokens: bool = False
    """x counts tokens: written as 8k."""
    x_log: bool = False
    y_log: bool = False
    mark: int | None = None
    """A native length (tokens), drawn as a vertical line."""


Part = Note | PageTable | Chart


@dataclass(frozen=True)
class PageSection:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    intro: str
    sections: Sequence[PageSection]
    verdict: Sequence[str] = ()
    """Sentences at the top."""
