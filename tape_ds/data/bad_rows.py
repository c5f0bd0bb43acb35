"""Unreadable rows: refused, or left out up to a limit, counted and named.

Which rows are bad depends on the data alone; the limit only decides whether a run is refused. So every process, every
resume and every sufficient limit reads the same documents.
"""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tape_ds import storage
from tape_ds.errors import Problem, UserError, redacted
from tape_ds.fields import FREE, Section
from tape_ds.numbers import counted

logger = logging.getLogger(__name__)

# rows that a message lists
NAMED = 10


class Skip(Section):
    bad_rows: Annotated[int, FREE] = Field(0, ge=0)
    """Rows of the data that may be left out because they cannot be read: null or without the field, no JSON, no UTF-8,
    no conversation, one with what is not rendered, or a text with a token that stands for pictures. Each is counted and
    named; one more ends the run. 0: the first one does."""


class BadRows:
    """The rows that a run leaves out."""

    FILE = "bad_rows.json"

    def __init__(self, limit: int | None = None, *, tell: bool = False):
        """
        Args:
            limit: the most rows; None: no row, in a reader without such a setting.
            tell: log each row when it is found, for a stream, whose bad rows are not known before the run.
        """
        self.limit = limit
        self.tell = tell
        self._found: dict[tuple[Any, str], Problem] = {}

    def add(self, problem: Problem) -> None:
        """Leave a row out; it counts once, however often it is read."""
        place = (problem.value, problem.wrong)
        if place in self._found:
            return
        if len(self._found) < (self.limit or 0):
            self._found[place] = problem
            if self.tell:
                logger.warning("left out: %s", redacted(f"{problem.value}: {problem.wrong}"))
            return
        if self.limit is not None:
            before = f"; left out before it: {self}" if self._found else ""
            comma = "" if problem.remedy.endswith("?") else ","
            remedy = f"{problem.remedy}{comma} or raise skip_bad_rows to leave such rows out"
            problem = replace(problem, wrong=f"{problem.wrong}{before}", remedy=remedy)
        raise UserError(problem)

    def write(self, file: Path) -> None:
        """Store the rows that were left out, if any."""
        if self._found:
            rows = [
                [row.field, redacted(str(row.value)), row.wrong, row.remedy]
                for row in self.problems
            ]
            storage.write_json(file, rows)

    def read(self, file: Path, **known: str) -> None:
        """Add the stored rows, if the file exists, with the current values ``known`` of a problem's fields."""
        if file.exists():
            for row in json.loads(file.read_text(encoding="utf-8")):
                self.add(replace(Problem(*row), **known))

    @property
    def problems(self) -> list[Problem]:
        return list(self._found.values())

    def __str__(self) -> str:
        """``2 rows: a.jsonl:3 is not JSON (...); a.jsonl:7: 'text' holds NoneType, not text``."""
        count = len(self._found)
        named = "; ".join(problem.wrong for problem in self.problems[:NAMED])
        if count > NAMED:
            named += f"; and {count - NAMED} more"
        return redacted(f"{counted(count, 'row')}: {named}")


class SourceBadRows(BadRows):
    """The rows that are left out of one source."""

    def __init__(self, of_run: BadRows, field: str, spec: str):
        super().__init__(of_run.limit)
        self._of_run = of_run
        self._known = {"field": field, "value": spec}

    def count(self, file: Path) -> None:
        self._of_run.read(file, **self._known)
