"""The table of engines as Markdown: for the card of a model, and for the book."""

import re
from collections.abc import Collection, Mapping
from itertools import filterfalse
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
        words = _WORDS[verdict.result]
        if verdict.says:
            # "right with --flag", but "refused: why"
            words += " " if verdict.result == "flag" else ": "
            words += "; ".join(map(in_code, verdict.says))
        rows.append((verdict.engine.label, words))
    return markdown_table(("engine", "RoPE of this folder"), rows, "l")


def of_exported(families: Collection[str] = ("llama",)) -> str:
    """Return a table of what each engine computes of an exported folder of these model types, by scaling."""
    # two kinds of families, of which export writes different files
    said_twice = list(filter(families.__contains__, _SAID_TWICE))
    others = list(filterfalse(_SAID_TWICE.__contains__, families))
    rows = []
    for engine in engines().values():
        for group in engine.groups:
            for kind in (said_twice, others):
                shown = list(filter(group.families.__contains__, kind))
                if shown:
                    rows.append(_row(engine, group, shown))
    head = ("engine", "right", "right with a flag", "refused", "**silently wrong**", "tried")
    return markdown_table(head, rows, "l")


def _row(engine: ServingEngine, group: CellGroup, families: list[str]) -> tuple[str, ...]:
    by_result: dict[str, dict[tuple[str, ...], list[str]]] = {result: {} for result in _WORDS}
    for scaling, traits in EXPORTED.items():
        # families of one group are computed alike: the first is enough
        if families[0] not in _SAID_TWICE:
            traits = tuple(trait.removesuffix("_twice") for trait in traits)
        verdict = computed_of(engine, RopeForm(families[0], traits))
        by_result[verdict.result].setdefault(_said(verdict), []).append(scaling)
    cells = {}
    for result, said in by_result.items():
        cells[result] = "; ".join(map(_listed, said.values(), said))
    tried = f"{group.date}, {group.how}"
    if cells["untried"]:
        tried += f"; not tried: {cells['untried']}"
    name = engine.label
    if families != ["llama"]:
        name += f", {', '.join(families)}"
    return (name, cells["right"], cells["flag"], cells["refused"], cells["wrong"], tried)


def _said(verdict: Verdict) -> tuple[str, ...]:
    if verdict.result == "untried":
        return ()
    return tuple(map(in_code, verdict.says))


def _listed(scalings: list[str], says: tuple[str, ...]) -> str:
    of_yarn = {scaling for scaling in EXPORTED if scaling.startswith("yarn")}
    if of_yarn <= set(scalings):
        scalings = [*filterfalse(of_yarn.__contains__, scalings), "every yarn"]
    text = ", ".join(scalings)
    if says:
        text += f": {' and '.join(says)}"
    return text


def of_traits() -> str:
    """Return the whole table: a row for each engine, model types and result."""
    rows = []
    for engine in engines().values():
        for group in engine.groups:
            # traits of which an engine makes the same share a row
            alike: dict[tuple[str, str, str], list[str]] = {}
            for trait, cell in group.cells.items():
                alike.setdefault((cell.result, cell.says, cell.how), []).append(TRAITS[trait])
            for (result, says, how), traits in alike.items():
                about = ", ".join(traits)
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
    # of a whole table there is no config.json to fill them in from
    named = _FIELD.sub(lambda field: field[1].upper(), says)
    if not named.startswith("--"):
        return named
    flag, bracket, remark = named.partition(" (")
    return f"`{flag}`{bracket}{remark}"
