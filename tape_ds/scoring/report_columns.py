"""Columns of the report: the stored results in each folder of the command line.

A column is one run with its evaluations, or one evaluated model: at most one result of a kind. A folder with more, such
as several runs or an evaluation of each checkpoint, becomes several columns.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tape_ds import results
from tape_ds.arguments import named
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.run_folder import EVALUATION, RESULTS

PARTS_OF_A_RUN = (RESULTS, EVALUATION)
"""Subfolders whose results belong to the run of the folder above them."""
RUN = "run"
KINDS = {
    RUN: "train_loss",
    "perplexity": "perplexity",
    "passkey": "cells",
    "ruler": "effective",
    "harness": "tasks",
}
"""A training run or the name of an evaluation's command -> a figure that all its results have."""


class Record(NamedTuple):
    path: Path
    kind: str
    result: results.Result


class Column(NamedTuple):
    name: str
    records: Mapping[str, Record]
    """By kind."""


Unused = tuple[Path, str]
"""A file that cannot be shown, and the reason."""


def select(columns: Sequence[Column], kind: str) -> dict[str, results.Result]:
    """Return the results of a kind by the names of their columns."""
    return {
        column.name: column.records[kind].result for column in columns if kind in column.records
    }


def collect(arguments: Sequence[str]) -> tuple[list[Column], list[Unused]]:
    """Return the columns of all arguments, each ``[NAME=]PATH``, and the files that cannot be shown."""
    problems: list[Problem] = []
    columns: list[Column] = []
    unused: list[Unused] = []
    for argument in arguments:
        name, rest = named(argument)
        path = Path(rest)
        records, unreadable = find_records(path)
        if not records:
            reasons = "; ".join(f"{file.name}: {reason}" for file, reason in unreadable[:3])
            wrong = "no stored result"
            if reasons:
                wrong = f"no stored result that can be shown ({reasons})"
            wrong = wrong if path.exists() else "no such file or folder"
            problems.append(
                Problem("RUNS", argument, wrong, "name a run's folder or what an evaluation wrote")
            )
        unused += unreadable
        columns += columns_of(name, path, records)
    for name, count in Counter(column.name for column in columns).items():
        if count > 1:
            problems.append(Problem("RUNS", name, "two columns have this name", "write NAME=PATH"))
    raise_if_any(problems)
    return columns, unused


def find_records(path: Path) -> tuple[list[Record], list[Unused]]:
    """Return the results in a file, or in a folder and its subfolders; hidden ones are skipped."""
    files = [path] if path.is_file() else path.rglob("*.json")
    records: list[Record] = []
    unused: list[Unused] = []
    for file in sorted(files, key=lambda each: (each.parent.parts, each.name)):
        if any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        # runs keep other JSON files, which are neither shown nor reported
        if file != path:
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                is_result = isinstance(content, dict) and {"schema", "figures"} <= content.keys()
            except (OSError, ValueError):
                is_result = file.stem in KINDS
            if not is_result:
                continue
        try:
            result = results.load(file)
            kind = result.config.get("evaluation") or RUN
        except UserError as error:
            unused.append(
                (file, "; ".join(f"{each.field}: {each.wrong}" for each in error.problems))
            )
            continue
        if kind not in KINDS or KINDS[kind] not in result.figures:
            unused.append((file, "figures of neither a run nor an evaluation"))
        elif result.finished is None:
            unused.append((file, "the run has not ended"))
        else:
            records.append(Record(file, kind, result))
    return records, unused


def columns_of(name: str | None, path: Path, records: Sequence[Record]) -> list[Column]:
    """Return a column for each run's folder; if it has several results of a kind, one for each file."""
    folders: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        parts = record.path.relative_to(path).parts[:-1]
        folders.setdefault(tuple(part for part in parts if part not in PARTS_OF_A_RUN), []).append(
            record
        )
    if name is None and () in folders:
        # the file's name, unless that is the name of a kind, or else that of its run's folder
        whole = path.resolve()
        folder = whole.parent if whole.is_file() else whole
        folder = folder.parent if folder.name in PARTS_OF_A_RUN and folder.parent.name else folder
        name = whole.stem if whole.is_file() and whole.stem not in KINDS else folder.name
    columns = []
    for inner, found in folders.items():
        by_kind = {record.kind: record for record in found}
        separate = (
            [by_kind] if len(by_kind) == len(found) else [{record.kind: record} for record in found]
        )
        for own in separate:
            file = None
            if len(separate) > 1:
                file = next(iter(own.values())).path.stem
            columns.append(Column("/".join(filter(None, [name, *inner, file])), own))
    return columns
