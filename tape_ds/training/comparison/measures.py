"""Figures that runs of a comparison have, and how tables and sentences write them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tape_ds.scoring.statistics import Sample
from tape_ds.training.numbers import number

Row = Mapping[str, Any]
"""What one run came to: its arm under what an arm is called (``encoding``), ``seed``, ``again``, and its figures."""
LARGE = 1e6
"""From here on numbers are written with an exponent."""


@dataclass(frozen=True)
class Measure:
    """A figure that a run has."""

    name: str
    """As ``--primary`` and the stored result call it."""
    title: str
    """As sentences do."""
    of: Callable[[Row], float | None]
    """Its value in a run; None where it has none."""
    header: str = ""
    """What its column is headed with, where that is not the title."""
    lower: bool = True
    """Whether less of it is better."""
    digits: int = 2
    """Decimal places."""
    is_share: bool = False
    """Whether it goes from 0 to 1 and is written as per cents, and differences in points."""
    has_best: bool = True
    """Whether a table shows which arm is best in it."""

    def write(self, value: float | None) -> str:
        """One value, as tables write it."""
        return self.write_plain(value) + "%" * (self.is_share and value is not None)

    def write_sample(self, found: Sample | None) -> str:
        """A mean, with half the width of its interval where it has one."""
        if found is None or found.half_width is None:
            return self.write(None if found is None else found.mean)
        return f"{self.write_plain(found.mean)} ± {self.write_plain(found.half_width)}" + "%" * self.is_share

    def write_difference(self, value: float) -> str:
        """A signed difference of two values, per cents in points."""
        return ("+" if value > 0 else "") + self.write_plain(value)

    def write_size(self, value: float) -> str:
        """How large a difference is, in a sentence."""
        return self.write_plain(value) + " points" * self.is_share

    def write_plain(self, value: float | None) -> str:
        """The number alone; of a share, that of per cents or points."""
        scaled = None if value is None else value * (100 if self.is_share else 1)
        large = scaled is not None and LARGE <= abs(scaled) < math.inf
        return number(scaled, ".1e" if large else f",.{self.digits}f")


@dataclass(frozen=True)
class Column:
    """A column of the table that is no measure."""

    header: str
    cell: Callable[[Sequence[Row]], str]
    """What it says of one arm's runs, which are at least one."""


PARAMETERS = Column("parameters", lambda rows: f"{rows[0]['parameters']:,}")


def seconds(header: str) -> Column:
    """How long a run took, the mean of an arm's."""
    return Column(header, lambda rows: f"{fmean(row['seconds'] for row in rows):.0f}")


def training_loss(digits: int) -> Measure:
    """The training loss that was logged last."""
    return Measure("train_loss", "training loss", lambda row: row["train_loss"], digits=digits, has_best=False)
