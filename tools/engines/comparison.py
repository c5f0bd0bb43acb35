"""What an engine computed, beside transformers' and beside the table."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds.engines import table
from tools.engines.cases import Case, cases

RIGHT = 1e-3
"""The largest difference of log-probabilities, or of cosines and sines, of an engine that computes the same model."""
_WORST = ("wrong", "refused", "right")


@dataclass(frozen=True)
class MeasuredFolder:
    """What an engine made of a folder."""

    result: str
    """``right``, ``refused`` or ``wrong``; the worst of all prompts and of the length."""
    differences: Mapping[str, float | None]
    """The largest difference for each prompt; None where the engine refused it."""
    length: int | None
    """The engine serves texts of this length; None where it has no length of its own."""
    error: str
    """The engine's, of one prompt."""

    def as_row(self) -> dict[str, Any]:
        row = {"result": self.result, **self.differences}
        if self.length is not None:
            row["length"] = self.length
        if self.error:
            return {**row, "error": self.error}
        return row


@dataclass(frozen=True)
class MeasuredCase:
    """One case in one engine."""

    case: Case
    served: MeasuredFolder
    """With the flag that the table names, if it does."""
    without_flag: MeasuredFolder | None = None
    """None where the table names no flag."""

    def as_row(self) -> dict[str, Any]:
        row = {"case": self.case.name, **self.served.as_row()}
        if self.without_flag is not None:
            row["without_flag"] = self.without_flag.as_row()
        return row


def measured(
    folder: Path, out: Path, families: Collection[str], reference: str
) -> Iterator[MeasuredCase]:
    """Yield what an engine made of each case of these model types: ``folder`` has the cases, ``out`` what its reader
    wrote, which is compared with the file ``reference`` of a case."""
    for case in cases():
        if case.family not in families:
            continue
        with_flag = _measured(folder / case.name, out / case.name, reference)
        without_flag = None
        # what a person gets who overlooks the flag
        plain = out / f"{case.name}.without_flag"
        if _beside(plain, ".npz").is_file():
            without_flag = _measured(folder / case.name, plain, reference)
        yield MeasuredCase(case, with_flag, without_flag)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _measured(case: Path, out: Path, name_of_reference: str) -> MeasuredFolder:
    reference = np.load(case / name_of_reference)
    found = np.load(_beside(out, ".npz"))
    said = json.loads(_beside(out, ".json").read_text(encoding="utf-8"))
    differences: dict[str, float | None] = {}
    for name in reference.files:
        differences[name] = None
        # llama.cpp gives those of a prompt's last token alone
        if name in found:
            last = reference[name][-len(found[name]) :]
            differences[name] = float(f"{np.abs(last - found[name]).max():.2g}")
    results = {_result(difference) for difference in differences.values()}
    config = json.loads((case / "config.json").read_text(encoding="utf-8"))
    if said["length"] not in (None, config["max_position_embeddings"]):
        results.add("wrong")
    worst = next(each for each in _WORST if each in results)
    error = next(iter(said["errors"].values()), "").replace(str(case.parent), "FOLDER")
    return MeasuredFolder(worst, differences, said["length"], error)


def _result(difference: float | None) -> str:
    if difference is None:
        return "refused"
    if difference <= RIGHT:
        return "right"
    return "wrong"


def changes(engine: str, folder: Path, found: list[MeasuredCase]) -> list[str]:
    """Return a line for each case that the table says something else of; a case that needs a flag is right with it,
    and not without."""
    lines = []
    for measured_case in found:
        name = measured_case.case.name
        config = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        verdict = table.computed(engine, config)
        expected = "right" if verdict.result == "flag" else verdict.result
        served = measured_case.served
        if expected != served.result:
            lines.append(
                f"{engine}, {name}: the table says {expected}, it is {served.result} {served.error}"
            )
        without_flag = measured_case.without_flag
        if without_flag is not None and without_flag.result == "right":
            lines.append(f"{engine}, {name}: the table says right with a flag, it is right without")
    return lines
