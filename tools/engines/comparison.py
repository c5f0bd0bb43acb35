"""What an engine computed, beside transformers' and beside the table."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds.engines import table
from tools.engines.cases import LENGTHS, Case, cases

RIGHT = 1e-3
"""The largest difference of log-probabilities of an engine that computes the same model."""
_WORST = ("wrong", "refused", "right")


@dataclass(frozen=True)
class MeasuredCase:
    """One case in one engine."""

    case: Case
    result: str
    """``right``, ``refused`` or ``wrong``; the worst of both prompts."""
    differences: Mapping[str, float | None]
    """The largest difference for each prompt; None where the engine refused it."""
    error: str
    """The engine's, of one prompt."""

    def as_row(self) -> dict[str, Any]:
        row = {"case": self.case.name, "result": self.result, **self.differences}
        return {**row, "error": self.error} if self.error else row


def measured(folder: Path, out: Path) -> Iterator[MeasuredCase]:
    """Yield what an engine made of each case: ``folder`` has the cases, ``out`` what its reader wrote."""
    for case in cases():
        reference = np.load(folder / case.name / "transformers.npz")
        found = np.load(out / f"{case.name}.npz")
        errors = json.loads((out / f"{case.name}.json").read_text(encoding="utf-8"))
        differences: dict[str, float | None] = {}
        for name in LENGTHS:
            differences[name] = None
            if name in found:
                last = reference[name][-len(found[name]) :]
                differences[name] = float(f"{np.abs(last - found[name]).max():.2g}")
        results = {_result(difference) for difference in differences.values()}
        worst = next(each for each in _WORST if each in results)
        error = next(iter(errors.values()), "").replace(str(folder), "FOLDER")
        yield MeasuredCase(case, worst, differences, error)


def _result(difference: float | None) -> str:
    if difference is None:
        return "refused"
    return "right" if difference <= RIGHT else "wrong"


def changes(engine: str, folder: Path, found: list[MeasuredCase]) -> list[str]:
    """Return a line for each case that the table says something else of; a case that needs a flag may be right with
    it, and no other."""
    lines = []
    for each in found:
        config = json.loads((folder / each.case.name / "config.json").read_text(encoding="utf-8"))
        verdict = table.computed(engine, config)
        expected = "right" if verdict.result == "flag" else verdict.result
        if expected != each.result:
            lines.append(f"{engine}, {each.case.name}: the table says {expected}, it is {each.result} {each.error}")
    return lines
