"""What a page is made of, whatever it is written as: sections of text, notes, tables and charts.

Strings are plain text; each writer escapes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MISSING = "–"
"""What stands where there is no number; never 0."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Note:
    """Something to know before numbers are read; ``loud`` where they do not compare."""

    text: str
    loud: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str = MISSING
    detail: str = ""
    """Small print behind it: a standard error, a count."""
    best: bool = False
    share: float | None = None
    """0 to 1, shown as a colour too."""


@dataclass(frozen=True)
class Head:
    """One column of a table."""

    text: str
    run: int | None = None
    """Number of the run it shows, which decides its colour; None: of no run."""
    published: str = ""
    """What was measured where, of a published number; stands over the column."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads; the first cell of a row is its name."""

    caption: str
    heads: Sequence[Head]
    """One for each cell of a row, the names' own first."""
    rows: Sequence[tuple[str, Sequence[Cell]]]
    dense: bool = False
    """A grid of coloured cells."""


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

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    alt: str
    """What the picture shows, for who cannot see it."""
    x_tokens: bool = False
    """x counts tokens: written as 8k."""
    x_log: bool = False
    y_log: bool = False
    y_most: float | None = None
    """The axis ends at this value and its negative; lines leave the frame. None: it holds all points."""
    marks: Sequence[tuple[float, str]] = ()
    """Vertical lines at x, and what they are called."""


@dataclass(frozen=True)
class Grid:
    """Parts that stand side by side where there is room."""

    parts: Sequence["Table | Chart"]


@dataclass(frozen=True)
class Folded:
    """Parts that are shown on request."""

    title: str
    parts: Sequence["Part"]


Part = Text | Note | Table | Chart | Grid | Folded


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        """Its name in addresses."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    intro: str
    sections: Sequence[Section] = field(default_factory=tuple)
