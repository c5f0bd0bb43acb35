"""The table of engines as Markdown: for the card of a model, and for the book."""

from collections.abc import Mapping
from typing import Any

from tape_ds.engines.forms import BY_LAYER, OWN_CODE, SCALINGS, TRAITS
from tape_ds.engines.table import Cell, Engine, Group, engines, verdicts
from tape_ds.markdown_table import markdown_table

_WORDS = {"right": "right", "flag": "right with", "untried": "not tried", "refused": "refused", "wrong": "**WRONG**"}
FAMILY = "llama"
"""The model type of the book's short table."""


def of_config(config: Mapping[str, Any]) -> str:
    """Return a table of what each engine computes of a ``config.json``."""
    rows = []
    for verdict in verdicts(config):
        joint = " " if verdict.result == "flag" else ": "
        said = joint + "; ".join(verdict.says) if verdict.says else ""
        rows.append((verdict.engine.label, _WORDS[verdict.result] + said))
    return markdown_table(("engine", "RoPE of this folder"), rows, "l")


def by_scaling() -> str:
    """Return a table of every engine and scaling of an exported Llama: the result alone."""
    rows = []
    for engine in engines().values():
        group = engine.group(FAMILY)
        rows.append([engine.label, *(_short(group, trait) for trait in SCALINGS)])
    return markdown_table(["", *(_heading(trait) for trait in SCALINGS)], rows, "l")


def by_engine() -> str:
    """Return a table of every engine with what it needs and where it is wrong, for every model type tried."""
    rows = []
    for engine in engines().values():
        for group in engine.groups:
            rows.append(_engine_row(engine, group))
    head = ("engine, model types", "right", "right with", "refused", "**silently wrong**", "tried")
    return markdown_table(head, rows, "l")


def _engine_row(engine: Engine, group: Group) -> tuple[str, ...]:
    described = {"flag": "", "refused": "", "wrong": ""}
    for result in described:
        said: dict[str, list[str]] = {}
        for trait, cell in group.cells.items():
            if cell.result == result:
                said.setdefault(cell.says, []).append(TRAITS[trait])
        described[result] = "; ".join(f"{', '.join(traits)}: {_in_code(says)}" for says, traits in said.items())
    right = ", ".join(TRAITS[trait] for trait, cell in group.cells.items() if cell.result == "right" and _counts(trait))
    tried = f"{group.date}, {group.how}, by {_by(group)}"
    return (
        f"{engine.label}: {', '.join(group.families)}",
        right,
        described["flag"],
        described["refused"],
        described["wrong"],
        tried,
    )


def _counts(trait: str) -> bool:
    return trait in SCALINGS or trait in ("yarn_attention", "yarn_attention_twice", "yarn_betas")


def _by(group: Group) -> str:
    return f"`{group.by}`" if group.by != "hand" else "hand"


def _in_code(says: str) -> str:
    """Return a flag as code up to its remark in brackets, values in capitals."""
    if not says.startswith("--"):
        return says
    flag, bracket, remark = says.partition(" (")
    shown = flag.replace(":.9g", "").replace(":g", "").replace("{", "").replace("}", "")
    return f"`{shown}`{bracket}{remark}"


def _short(group: Group | None, trait: str) -> str:
    if group is None:
        return _WORDS["untried"]
    cell = group.cells.get(trait, Cell("untried"))
    return "right with a flag" if cell.result == "flag" else _WORDS[cell.result]


def _heading(trait: str) -> str:
    assert trait not in (BY_LAYER, OWN_CODE)
    return f"`{trait}`" if trait != "yarn_exact_ramp" else "`yarn`, `truncate: false`"
