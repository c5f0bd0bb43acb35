"""Columns of the report: the stored results in each folder of the command line.

A column is one run with its evaluations, or one evaluated model: at most one result of a kind. A folder with more, such
as several runs or an evaluation of each checkpoint, becomes several columns.
"""

import json
from collections import Counter, defaultdict
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

    def result(self, kind: str) -> results.Result | None:
        record = self.records.get(kind)
        if record is None:
            return None
        return record.result


Unused = tuple[Path, str]
"""A file that cannot be shown, and the reason."""


def select(columns: Sequence[Column], kind: str) -> dict[str, results.Result]:
    """Return the results of a kind by the names of their columns."""
    found = {}
    for column in columns:
        result = column.result(kind)
        if result is not None:
            found[column.name] = result
    return found


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
            reason = "no stored result"
            if not path.exists():
                reason = "no such file or folder"
            elif unreadable:
                # the first few say enough of a folder with many
                listed = "; ".join(f"{file.name}: {why}" for file, why in unreadable[:3])
                reason = f"no stored result that can be shown ({listed})"
            remedy = "name a run's folder or what an evaluation wrote"
            problems.append(Problem("RUNS", argument, reason, remedy))
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
        if file != path and not _is_result(file):
            continue
        try:
            result = results.load(file)
            kind = result.config.get("evaluation") or RUN
        except UserError as error:
            reasons = [f"{problem.field}: {problem.wrong}" for problem in error.problems]
            unused.append((file, "; ".join(reasons)))
            continue
        if kind not in KINDS or KINDS[kind] not in result.figures:
            unused.append((file, "figures of neither a run nor an evaluation"))
        elif result.finished is None:
            unused.append((file, "the run has not ended"))
        else:
            records.append(Record(file, kind, result))
    return records, unused


def _is_result(file: Path) -> bool:
    """Return whether a file looks like a stored result; one that cannot be read, by its name."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return file.stem in KINDS
    return isinstance(content, dict) and {"schema", "figures"} <= content.keys()


def columns_of(name: str | None, path: Path, records: Sequence[Record]) -> list[Column]:
    """Return a column for each run's folder; if it has several results of a kind, one for each file."""
    folders: defaultdict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        parts = record.path.relative_to(path).parts[:-1]
        folders[tuple(part for part in parts if part not in PARTS_OF_A_RUN)].append(record)
    if name is None and () in folders:
        name = _name_of(path.resolve())
    columns = []
    for inner, of_folder in folders.items():
        # a run with its evaluations, or several results of one kind
        by_kind = {record.kind: record for record in of_folder}
        if len(by_kind) == len(of_folder):
            columns.append(Column("/".join(filter(None, [name, *inner])), by_kind))
            continue
        for record in of_folder:
            words = [name, *inner, record.path.stem]
            columns.append(Column("/".join(filter(None, words)), {record.kind: record}))
    return columns


def _name_of(path: Path) -> str:
    """Return the file's name, unless that is the name of a kind, or else that of its run's folder."""
    folder = path
    if path.is_file():
        if path.stem not in KINDS:
            return path.stem
        folder = path.parent
    if folder.name in PARTS_OF_A_RUN and folder.parent.name:
        folder = folder.parent
    return folder.name
