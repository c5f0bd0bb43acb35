"""Read ``table.yaml``, and answer what an engine computes of a ``config.json``."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from tape_ds.engines.forms import OWN_CODE, TRAITS, RopeForm, form_of
from tape_ds.errors import Problem, did_you_mean

TABLE = Path(__file__).with_name("table.yaml")
Result = Literal["right", "flag", "untried", "refused", "wrong"]
"""``flag``: right with a flag; ``refused``: with an error; ``wrong``: another model, without a word."""
_HOW = ("run", "tables", "read")
_BY = ("hand", "make engines")
_BLIND = "rope_parameters_only"
"""An engine that does not see a scaling cannot refuse it."""


@dataclass(frozen=True)
class Cell:
    """What an engine makes of one trait."""

    result: Result
    says: str = ""
    """A flag, what is computed instead, or what refuses it; with fields of a form in braces."""
    how: str = ""
    """As a group's, where it differs for this trait."""


@dataclass(frozen=True)
class CellGroup:
    """Cells of the model types that an engine was tried with."""

    families: tuple[str, ...]
    how: str
    by: str
    date: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class ServingEngine:
    name: str
    title: str
    version: str
    groups: tuple[CellGroup, ...]

    def group(self, family: str) -> CellGroup | None:
        for group in self.groups:
            if family in group.families:
                return group
        return None

    @property
    def label(self) -> str:
        return f"{self.title} {self.version}"


@dataclass(frozen=True)
class Verdict:
    """What an engine computes of a ``config.json``."""

    engine: ServingEngine
    result: Result
    says: tuple[str, ...] = ()

    def __str__(self) -> str:
        begin = {
            "right": "computes it",
            "flag": "computes it with",
            "untried": "was not tried with",
            "refused": "refuses it",
            "wrong": "silently computes another model",
        }[self.result]
        # flags are given together, reasons are separate sentences
        said = (" and " if self.result == "flag" else "; ").join(self.says)
        if said:
            said = f": {said}" if self.result in ("refused", "wrong") else f" {said}"
        return f"{self.engine.label} {begin}{said}"


@functools.cache
def engines() -> Mapping[str, ServingEngine]:
    """Return the engines by name, in the order of the file.

    Raises:
        ValueError: the file has an unknown word, or a trait twice.
    """
    content = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {name: _engine(name, entry) for name, entry in content.items()}


def _engine(name: str, entry: Mapping[str, Any]) -> ServingEngine:
    groups = tuple(map(functools.partial(_group, name), entry["groups"]))
    # YAML reads 0.9 as a number
    return ServingEngine(name, entry["title"], str(entry["version"]), groups)


def _group(name: str, entry: Mapping[str, Any]) -> CellGroup:
    if entry["how"] not in _HOW or entry["by"] not in _BY:
        raise ValueError(f"{name}: how is one of {_HOW}, by one of {_BY}")
    cells: dict[str, Cell] = {}
    for line in entry["cells"]:
        how = line.get("how", entry["how"])
        if line["result"] not in get_args(Result) or how not in _HOW:
            raise ValueError(
                f"{name}: {line['result']!r} is no result, or {how!r} not one of {_HOW}"
            )
        for trait in line["of"]:
            if trait not in TRAITS or trait in cells:
                raise ValueError(f"{name}: the trait {trait!r} is unknown, or there twice")
            cells[trait] = Cell(line["result"], line.get("says", ""), how)
    return CellGroup(tuple(entry["of"]), entry["how"], entry["by"], str(entry["date"]), cells)


def check_names(field: str, names: Iterable[str]) -> list[Problem]:
    """Return a problem for each name that is no engine of the table."""
    known = engines()
    problems = []
    for name in names:
        if name not in known:
            remedy = did_you_mean(name, known)
            problems.append(Problem(field, name, "no engine of the table", remedy))
    return problems


def check_served(field: str, names: Iterable[str], config: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each of these engines that silently computes another model of a ``config.json``."""
    of_engines = verdicts(config)
    right = [each.engine.name for each in of_engines if each.result in ("right", "flag")]
    problems = []
    for verdict in of_engines:
        # a refusal is an error that a person sees, and needs no check
        if verdict.engine.name in names and verdict.result == "wrong":
            remedy = "give --check_anyway to write it all the same"
            if right:
                remedy = f"serve it by one of {', '.join(right)}; or {remedy}"
            problems.append(Problem(field, verdict.engine.name, str(verdict), remedy))
    return problems


def computed(name: str, config: Mapping[str, Any]) -> Verdict:
    """Return what the engine ``name`` computes of a ``config.json``: the most serious of what it makes of its
    traits."""
    return computed_of(engines()[name], form_of(config))


def computed_of(engine: ServingEngine, form: RopeForm) -> Verdict:
    if form.traits == (OWN_CODE,):
        return Verdict(engine, "refused", (f"no model type {form.family!r}",))
    group = engine.group(form.family)
    if group is None:
        return Verdict(engine, "untried", (f"the model type {form.family!r}",))
    missing = [TRAITS.get(trait, trait) for trait in form.traits if trait not in group.cells]
    if missing:
        return Verdict(engine, "untried", tuple(missing))
    cells = defaultdict(list)
    for trait in form.traits:
        cell = group.cells[trait]
        # before the rest, which it could not refuse later
        if trait == _BLIND and cell.result == "wrong":
            return Verdict(engine, "wrong", (_filled(cell, form),))
        cells[cell.result].append(cell)
    results: Sequence[Result] = ("refused", "wrong", "flag")
    for result in results:
        if cells[result]:
            says = dict.fromkeys(_filled(cell, form) for cell in cells[result])
            return Verdict(engine, result, tuple(says))
    return Verdict(engine, "right")


def _filled(cell: Cell, form: RopeForm) -> str:
    if form.values:
        return cell.says.format_map(_Values(form.values))
    return cell.says


class _Values(dict[str, Any]):
    """The values of a form for a flag; YaRN's bounds have defaults."""

    def __missing__(self, key: str) -> Any:
        return {"beta_fast": 32, "beta_slow": 1}[key]


def verdicts(config: Mapping[str, Any]) -> list[Verdict]:
    """Return what every engine computes of a ``config.json``."""
    form = form_of(config)
    return list(map(functools.partial(computed_of, form=form), engines().values()))


def summary(config: Mapping[str, Any]) -> str:
    """Return in one line which engines compute a ``config.json`` right, with a flag, wrongly, or not at all."""
    if form_of(config).traits == (OWN_CODE,):
        kind = config["model_type"]
        return f"by transformers with the folder's own code; no other engine knows the model type {kind!r}"
    words = {
        "right": "right by",
        "flag": "right with a flag by",
        "wrong": "SILENTLY WRONG in",
        "refused": "refused by",
        "untried": "not tried with",
    }
    by_result = _by_result(config)
    parts = []
    for result, begin in words.items():
        if by_result[result]:
            titles = map(attrgetter("engine.title"), by_result[result])
            parts.append(f"{begin} {', '.join(titles)}")
    return "; ".join(parts)


def _by_result(config: Mapping[str, Any]) -> Mapping[str, list[Verdict]]:
    by_result: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts(config):
        by_result[verdict.result].append(verdict)
    return by_result
