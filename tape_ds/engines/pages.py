"""The table of engines as Markdown: for the card of a model, and for the book."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tape_ds.engines.forms import TRAITS, RopeForm
from tape_ds.engines.table import CellGroup, ServingEngine, Verdict, computed_of, engines, verdicts
from tape_ds.markdown_table import markdown_table

_WORDS = {
    "right": "right",
    "flag": "right with",
    "untried": "not tried",
    "refused": "refused",
    "wrong": "**wrong**",
}
_FIELD = re.compile(r"\{(\w+)(?::[^}]*)?\}")
EXPORTED: Mapping[str, tuple[str, ...]] = {
    "any base": ("unscaled",),
    "linear": ("linear",),
    "llama3": ("llama3",),
    "yarn": ("yarn", "yarn_betas_unnamed"),
    "yarn with `attention_factor`": ("yarn", "yarn_betas_unnamed", "yarn_attention_twice"),
    "yarn with `beta_*`": ("yarn", "yarn_betas"),
    "yarn with `truncate: false`": ("yarn_exact_ramp",),
}
"""Scalings of a plain folder as export writes them, and their traits."""
_SAID_TWICE = ("llama", "qwen2", "qwen3")
"""Model types whose factor on attention export writes in two ways."""


def of_config(config: Mapping[str, Any]) -> str:
    """Return a table of what each engine computes of a ``config.json``."""
    rows = []
    for verdict in verdicts(config):
        joint = " " if verdict.result == "flag" else ": "
        said = joint + "; ".join(map(in_code, verdict.says)) if verdict.says else ""
        rows.append((verdict.engine.label, _WORDS[verdict.result] + said))
    return markdown_table(("engine", "RoPE of this folder"), rows, "l")


def of_exported(families: Iterable[str] = ("llama",)) -> str:
    """Return a table of what each engine computes of an exported folder of these model types, by scaling."""
    rows = []
    for engine in engines().values():
        for group in engine.groups:
            said_twice = [
                family for family in _SAID_TWICE if family in families and family in group.families
            ]
            others = [
                family
                for family in families
                if family in group.families and family not in _SAID_TWICE
            ]
            rows += [_row(engine, group, shown) for shown in (said_twice, others) if shown]
    head = ("engine", "right", "right with a flag", "refused", "**silently wrong**", "tried")
    return markdown_table(head, rows, "l")


def _row(engine: ServingEngine, group: CellGroup, families: list[str]) -> tuple[str, ...]:
    by_result: dict[str, dict[tuple[str, ...], list[str]]] = {result: {} for result in _WORDS}
    for scaling, traits in EXPORTED.items():
        if families[0] not in _SAID_TWICE:
            traits = tuple(trait.removesuffix("_twice") for trait in traits)
        verdict = computed_of(engine, RopeForm(families[0], traits))
        by_result[verdict.result].setdefault(_said(verdict), []).append(scaling)
    cells = {}
    for result, said in by_result.items():
        cells[result] = "; ".join(_listed(scalings, says) for says, scalings in said.items())
    tried = f"{group.date}, {group.how}"
    if cells["untried"]:
        tried += f"; not tried: {cells['untried']}"
    name = engine.label if families == ["llama"] else f"{engine.label}, {', '.join(families)}"
    return (name, cells["right"], cells["flag"], cells["refused"], cells["wrong"], tried)


def _said(verdict: Verdict) -> tuple[str, ...]:
    if verdict.result == "untried":
        return ()
    return tuple(map(in_code, verdict.says))


def _listed(scalings: list[str], says: tuple[str, ...]) -> str:
    of_yarn = [scaling for scaling in EXPORTED if scaling.startswith("yarn")]
    if set(of_yarn) <= set(scalings):
        scalings = [scaling for scaling in scalings if scaling not in of_yarn] + ["every yarn"]
    return ", ".join(scalings) + (f": {' and '.join(says)}" if says else "")


def of_traits() -> str:
    """Return the whole table: a row for each engine, model types and result."""
    rows = []
    for engine in engines().values():
        for group in engine.groups:
            found: dict[tuple[str, str, str], list[str]] = {}
            for trait, cell in group.cells.items():
                found.setdefault((cell.result, cell.says, cell.how), []).append(trait)
            for (result, says, how), traits in found.items():
                about = ", ".join(TRAITS[trait] for trait in traits)
                tried = f"{group.date}, {how}, by {group.by}"
                rows.append(
                    (
                        engine.label,
                        ", ".join(group.families),
                        _WORDS[result],
                        in_code(says),
                        about,
                        tried,
                    )
                )
    return markdown_table(("engine", "model types", "result", "", "with", "tried"), rows, "l")


def in_code(says: str) -> str:
    """Return a flag as code up to its remark in brackets, and other words as they are; fields of a form in capitals."""
    named = _FIELD.sub(lambda field: field[1].upper(), says)
    if not named.startswith("--"):
        return named
    flag, bracket, remark = named.partition(" (")
    return f"`{flag}`{bracket}{remark}"
