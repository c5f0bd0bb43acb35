"""What a page compares: the stored results below each folder that was named, as columns.

A column is one run, or one evaluation's folder: at most one result of a kind. A folder with more, say one with several
runs or with an evaluation of each checkpoint, becomes several columns.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evaluation.options import named
from tape_ds import results
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.run_folder import RESULTS

DEPTH = 4
"""Folders below the one that was named in which results are looked for."""
PARTS_OF_A_RUN = (RESULTS, "evaluation")
"""Folders whose results are of the run that they lie in."""
RUN = "run"
"""The kind of a training run's result; an evaluation's is its command's name."""
LOSSES = "loss_by_position"
"""The figure, of a run or of the perplexity command, with losses by position."""
KINDS = {
    RUN: "train_loss",
    "perplexity": "perplexity",
    "passkey": "cells",
    "scrolls": "datasets",
    "harness": "tasks",
}
"""Kind of a result -> the figure that makes it one."""


@dataclass(frozen=True)
class Record:
    """One stored result, and where it is."""

    path: Path
    kind: str
    result: results.Result


@dataclass(frozen=True)
class Column:
    """What is compared under one name."""

    name: str
    records: Mapping[str, Record] = field(default_factory=dict)
    """By kind."""


Unused = tuple[Path, str]
"""A result's file that the page does not show, and why."""


def of(columns: Sequence[Column], kind: str) -> dict[int, results.Result]:
    """Run -> its result of a kind, for those that have one."""
    return {run: column.records[kind].result for run, column in enumerate(columns) if kind in column.records}


def names(columns: Sequence[Column]) -> list[str]:
    """Return what runs are called, by their numbers."""
    return [column.name for column in columns]


def collect(arguments: Sequence[str]) -> tuple[list[Column], list[Unused]]:
    """Return columns of everything named, and the files that could not be used.

    Args:
        arguments: folders or result files, each ``NAME=PATH`` where its column should have a name of its own.

    Raises:
        UserError: every argument under which there is no result that can be shown, with what was found instead.
    """
    problems: list[Problem] = []
    columns: list[Column] = []
    unused: list[Unused] = []
    for argument in arguments:
        name, rest = named(argument)
        path = Path(rest)
        records, useless = _records(path)
        if not records:
            found = "; ".join(f"{file.name}: {reason}" for file, reason in useless[:3])
            wrong = f"no stored result that can be shown ({found})" if found else "no stored result"
            wrong = wrong if path.exists() else "no such file or folder"
            problems.append(Problem("RUNS", argument, wrong, "name a run's folder or what an evaluation wrote"))
            continue
        unused += useless
        inner = [each.path.relative_to(path).parts[:-1] for each in records]
        below = [tuple(part for part in parts if part not in PARTS_OF_A_RUN) for parts in inner]
        columns += _columns(name or name_of(path), list(zip(below, records, strict=True)))
    raise_if_any(problems)
    used: Counter[str] = Counter()
    for at, column in enumerate(columns):
        used[column.name] += 1
        if used[column.name] > 1:
            columns[at] = replace(column, name=f"{column.name} ({used[column.name]})")
    return columns, unused


def name_of(path: Path) -> str:
    """Return what a column is called that nobody named: a file of a name of its own, its folder, or the run's that the
    folder belongs to."""
    own = path.resolve()
    if own.is_file() and own.stem not in KINDS:
        return own.stem
    own = own.parent if own.is_file() else own
    return own.parent.name if own.name in PARTS_OF_A_RUN and own.parent.name else own.name


def _records(path: Path) -> tuple[list[Record], list[Unused]]:
    """Of a file, or of JSON files below a folder, in order; not in hidden folders, no deeper than :data:`DEPTH`."""
    files = (
        [path] if path.is_file() else [file for deep in range(DEPTH + 1) for file in path.glob("*/" * deep + "*.json")]
    )
    records, unused = [], []
    for file in sorted(files, key=lambda each: (each.parent.parts, each.name)):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or not (file == path or _looks_like_one(file)):
            continue
        try:
            records.append(_record(file))
        except UserError as error:
            unused.append((file, "; ".join(f"{each.field}: {each.wrong}" for each in error.problems)))
    return records, unused


def _looks_like_one(file: Path) -> bool:
    """Return whether a file is a result, or is called like one and cannot be read; runs keep other JSON beside
    theirs."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return file.stem in KINDS
    return isinstance(content, dict) and {"schema", "figures"} <= set(content)


def _record(file: Path) -> Record:
    """Return the result in a file.

    Raises:
        UserError: it cannot be used, and why.
    """
    result = results.load(file)
    kind = result.config.get("evaluation") or RUN
    if kind not in KINDS or KINDS[kind] not in result.figures:
        raise UserError(Problem("figures", None, "neither a run's nor an evaluation's", "name another file"))
    if result.finished is None:
        raise UserError(Problem("finished", None, "the run has not ended", "wait for it"))
    return Record(file, kind, result)


def _columns(name: str, found: Sequence[tuple[tuple[str, ...], Record]]) -> list[Column]:
    """Return one column where no kind comes twice; else what lies in the folder itself is one, and each folder
    below."""
    records = {record.kind: record for _, record in found}
    if len(records) == len(found):
        return [Column(name, records)]
    if not any(inner for inner, _ in found):
        return [Column(record.path.stem, {record.kind: record}) for _, record in found]
    own = [each for each in found if not each[0]]
    columns = _columns(name, own) if own else []
    for part in dict.fromkeys(inner[0] for inner, _ in found if inner):
        below = [(inner[1:], record) for inner, record in found if inner[:1] == (part,)]
        columns += _columns(f"{name}: {part}" if own else part, below)
    return columns
