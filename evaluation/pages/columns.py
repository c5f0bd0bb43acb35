"""What a page compares: the stored results below each folder that was named, as columns.

A column is one run, or one evaluation's folder: at most one result of a kind. A folder with more, say one with several
runs or with an evaluation of each checkpoint, becomes several columns.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.run_folder import RESULTS
from tape_ds.scoring.span_losses import SpanLosses

DEPTH = 4
"""Folders below the one that was named in which results are looked for."""
RUN = "run"
"""The kind of a training run's result; an evaluation's is its command's name."""
LOSSES = "loss_by_position"
"""The figure, of a run or of the perplexity command, with losses by position."""
NEEDED: Mapping[str, tuple[str, type, tuple[str, ...]]] = {
    RUN: ("train_loss", list, ("step", "loss")),
    "perplexity": ("perplexity", list, ("source", "convention", "length", "nll", "perplexity")),
    "passkey": ("cells", list, ("length", "depth", "trials", "correct")),
    "scrolls": ("datasets", dict, ("metric", "score")),
    "harness": ("tasks", dict, ("value",)),
}
"""Kind -> the figure that makes it one, its type, and what each entry of it has."""

BESIDES: Mapping[str, tuple[str, ...]] = {
    "perplexity": ("length", "perplexity"),
    "passkey": ("length", "trials", "correct"),
}
"""Figures that a run may have too, and what each entry of them has."""


@dataclass(frozen=True)
class Record:
    """One stored result, and where it is."""

    path: Path
    kind: str
    result: results.Result

    @property
    def seconds(self) -> float | None:
        """From its start to its end; of one that was resumed, of its last part."""
        if self.result.finished is None:
            return None
        spent = datetime.fromisoformat(self.result.finished) - datetime.fromisoformat(self.result.started)
        return spent.total_seconds()


@dataclass(frozen=True)
class Column:
    """What is compared under one name."""

    name: str
    records: Mapping[str, Record] = field(default_factory=dict)
    """By kind."""

    def result(self, kind: str) -> results.Result | None:
        """Its result of a kind, if it has one."""
        record = self.records.get(kind)
        return record.result if record else None


@dataclass(frozen=True)
class Unused:
    """A result's file that the page does not show."""

    path: Path
    reason: str


def collect(arguments: Sequence[str]) -> tuple[list[Column], list[Unused]]:
    """Columns of everything named, and the files that could not be used.

    Args:
        arguments: folders or result files, each ``NAME=PATH`` where its column should have a name of its own.

    Raises:
        UserError: every argument under which there is no result that can be shown, with what was found instead.
    """
    problems: list[Problem] = []
    named: list[tuple[str | None, Column]] = []
    unused: list[Unused] = []
    for argument in arguments:
        name, path = _split(argument)
        records, useless = _records(path)
        if not records:
            found = "; ".join(f"{each.path.name}: {each.reason}" for each in useless[:3])
            wrong = f"no stored result that can be shown ({found})" if found else "no stored result"
            wrong = wrong if path.exists() else "no such file or folder"
            problems.append(Problem("RUNS", argument, wrong, "name a run's folder or what an evaluation wrote"))
            continue
        unused += useless
        own = path.parent if path.is_file() else path
        named += [(name, column) for column in _columns(own, name or _name(path), records)]
    raise_if_any(problems)
    return _distinct([column for _, column in named]), unused


def _split(argument: str) -> tuple[str | None, Path]:
    """``NAME=PATH``; a path that exists as it stands has no name before it."""
    name, equals, path = argument.partition("=")
    if equals and name and not Path(argument).exists():
        return name, Path(path)
    return None, Path(argument)


def _name(path: Path) -> str:
    """What a column is called that nobody named: a file of a name of its own, its folder, or the run's that the folder
    belongs to."""
    own = path.resolve()
    if own.is_file():
        if own.stem not in NEEDED:
            return own.stem
        own = own.parent
    while own.name in (RESULTS, "evaluation") and own.parent.name:
        own = own.parent
    return own.name


def _records(path: Path) -> tuple[list[Record], list[Unused]]:
    records, unused = [], []
    for file in [path] if path.is_file() else _files(path):
        try:
            record = _record(file, named=path.is_file())
        except UserError as error:
            unused.append(Unused(file, "; ".join(f"{each.field}: {each.wrong}" for each in error.problems)))
            continue
        if record is not None:
            records.append(record)
    return records, unused


def _files(folder: Path) -> Iterator[Path]:
    """JSON files below a folder, in order; not in hidden folders, no deeper than :data:`DEPTH`."""
    for here, folders, files in os.walk(folder):
        deep = len(Path(here).relative_to(folder).parts) >= DEPTH
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        yield from (Path(here) / name for name in sorted(files) if name.endswith(".json") and not name.startswith("."))


def _record(file: Path, named: bool) -> Record | None:
    """The result in a file; None for JSON that is none, unless the user named the very file.

    Raises:
        UserError: it cannot be used, and why.
    """
    if not named and not _looks_like_one(file):
        return None
    result = results.load(file)
    evaluation = result.config.get("evaluation")
    kind = evaluation if evaluation is not None else RUN
    if kind not in NEEDED or (kind == RUN and NEEDED[RUN][0] not in result.figures):
        raise UserError(Problem("figures", None, "neither a run's nor an evaluation's", "name another file"))
    if result.finished is None:
        raise UserError(Problem("finished", None, "the run has not ended", "wait for it"))
    raise_if_any(_check(kind, result.figures))
    return Record(file, kind, result)


def _looks_like_one(file: Path) -> bool:
    """Whether a file is a result, or is called like one and cannot be read; runs keep other JSON beside theirs."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return file.stem in NEEDED
    return isinstance(content, dict) and {"schema", "figures"} <= set(content)


def _check(kind: str, figures: Mapping[str, Any]) -> list[Problem]:
    """Whether a kind's figures have what the page reads."""
    name, form, keys = NEEDED[kind]
    remedy = "make it again with this version"
    if not isinstance(figures.get(name), form):
        return [Problem(f"figures.{name}", figures.get(name), f"is not a {form.__name__}", remedy)]
    wanted = {name: keys, **(BESIDES if kind == RUN else {})}
    problems = []
    for figure, needed in wanted.items():
        found = figures.get(figure) or []
        entries: Iterable[Any] = found.values() if isinstance(found, dict) else found
        lacking = sorted({key for each in entries for key in needed if not isinstance(each, dict) or key not in each})
        if lacking:
            problems.append(Problem(f"figures.{figure}", None, f"entries without {', '.join(lacking)}", remedy))
    try:
        for documents in (figures.get(LOSSES) or {}).values():
            SpanLosses.merge(SpanLosses.from_dict(each) for each in documents.values())
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        problems.append(Problem(f"figures.{LOSSES}", None, f"cannot be read ({error!r})", remedy))
    return problems


def _columns(folder: Path, name: str, records: Sequence[Record]) -> list[Column]:
    """One column where no kind comes twice. Else what lies in the folder itself is one, and each folder below its own;
    a run's training result stays with the first evaluation of the run."""
    if _unique(records):
        return [Column(name, {record.kind: record for record in records})]
    direct = [record for record in records if record.path.parent == folder]
    below: dict[str, list[Record]] = {}
    for record in records:
        if record not in direct:
            below.setdefault(record.path.relative_to(folder).parts[0], []).append(record)
    columns = _columns(folder, name, direct) if _unique(direct) and direct else []
    columns += [] if columns else [Column(record.path.stem, {record.kind: record}) for record in direct]
    run = below.pop(RESULTS, None)
    columns += [column for part, group in below.items() for column in _columns(folder / part, part, group)]
    if run is None:
        return columns
    first, *others = _columns(folder / RESULTS, name, run)
    with_run = next((each for each in columns if not set(each.records) & set(first.records)), None)
    rest = [*others, *(column for column in columns if column is not with_run)]
    own = Column(name, {**first.records, **(with_run.records if with_run else {})})
    return [own, *(Column(f"{name}: {column.name}", column.records) for column in rest)]


def _unique(records: Sequence[Record]) -> bool:
    """Whether no kind comes twice."""
    return len({record.kind for record in records}) == len(records)


def _distinct(columns: Sequence[Column]) -> list[Column]:
    """Names that differ: where two are the same, by a number."""
    seen: dict[str, int] = {}
    found = []
    for column in columns:
        seen[column.name] = seen.get(column.name, 0) + 1
        number = seen[column.name]
        found.append(column if number == 1 else Column(f"{column.name} ({number})", column.records))
    return found
