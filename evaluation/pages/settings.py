"""The section of what was run: in which settings the runs differ, and whether they were evaluated alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.pages import numbers
from evaluation.pages.columns import NEEDED, RUN, Column
from evaluation.pages.parts import Cell, Grid, Head, Note, Part, Section, Table, Text

HEADLINE = {
    "model": "model",
    "launcher": "launcher",
    "method": "method",
    "position_encoding": "encoding",
    "target_length": "target length",
    "max_steps": "steps",
    "global_batch_size": "global batch",
    "learning_rate": "learning rate",
    "window": "window",
}
"""Fields of a recipe that are shown even where all runs agree."""
OF_STEPS = ("max_steps", "global_batch_size", "learning_rate", "window")
"""Those that say nothing of a run that made no step."""
FOLDERS = {"output_dir", "resume_from_checkpoint", "data_cache"}
WHICH_ROWS = {"evaluation", "lengths", "depths", "data", "datasets", "tasks", "spans"}
"""Options that decide which numbers there are, not what they are; a page's rows show them."""
MODEL_FACTS = ("encoding", "dtype", "native_length", "tokenizer", "rope_parameters", "kind")


def section(columns: Sequence[Column]) -> Section:
    """Training settings, evaluation settings, and notes on what does not compare."""
    tables = [*_training(columns), *_models(columns)]
    parts: list[Part] = [Grid(tables), *_other_data(columns)] if tables else []
    for kind in NEEDED:
        if kind != RUN:
            parts += _evaluation(columns, kind)
    if not parts:
        parts.append(Text("No settings were stored."))
    return Section("What was run", parts)


def _training(columns: Sequence[Column]) -> list[Table]:
    """The headline fields, then all others that differ."""
    found = {run: result for run, column in enumerate(columns) if (result := column.result(RUN))}
    if not found:
        return []
    flat = {run: flatten(_short(result.config), FOLDERS) for run, result in found.items()}
    for run, result in found.items():
        if result.figures.get("steps") == 0:
            flat[run] |= dict.fromkeys(OF_STEPS)
        flat[run] |= {"tokens trained": result.figures.get("tokens")}
        flat[run] |= {"parameters trained": (result.figures.get("parameters") or {}).get("trained")}
    names = [name for name in HEADLINE if any(name in each for each in flat.values())]
    names += ["tokens trained", "parameters trained"]
    others = [name for name in differing(flat) if name not in names]
    heads = [Head("training"), *(Head(columns[run].name, run) for run in found)]
    tables = [Table("Training: the main settings", heads, _rows(flat, names))]
    if others:
        tables.append(Table("Training: every other setting that differs", heads, _rows(flat, others)))
    return tables


def _other_data(columns: Sequence[Column]) -> list[Note]:
    """Data of the same address that was not the same for all runs."""
    found = {run: result for run, column in enumerate(columns) if (result := column.result(RUN))}
    data = {run: result.data for run, result in found.items()}
    names = dict.fromkeys(name for each in data.values() for name in each)
    other = [name for name in names if len({each[name] for each in data.values() if name in each}) > 1]
    return [Note(f"The contents of {', '.join(other)} are not the same for all runs.", loud=True)] if other else []


def _short(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with DeepSpeed's part as its ZeRO stage: the rest decides memory and speed, not what is trained."""
    stage = ((config.get("deepspeed") or {}).get("zero_optimization") or {}).get("stage")
    return {**{name: value for name, value in config.items() if name != "deepspeed"}, "ZeRO stage": stage}


def _models(columns: Sequence[Column]) -> list[Table]:
    """The models that evaluations loaded."""
    facts = {}
    for run, column in enumerate(columns):
        models = [record.result.model for record in column.records.values() if record.result.model]
        if models:
            facts[run] = {name: models[0].get(name) for name in ("address", *MODEL_FACTS)}
            facts[run]["tokenizer"] = str(facts[run]["tokenizer"])[:8] if facts[run]["tokenizer"] else None
    if not facts:
        return []
    heads = [Head("model"), *(Head(columns[run].name, run) for run in facts)]
    flat = {run: flatten(each) for run, each in facts.items()}
    names = dict.fromkeys(name for each in flat.values() for name in each if each[name] is not None)
    return [Table("Models that were evaluated", heads, _rows(flat, list(names)))]


def _evaluation(columns: Sequence[Column], kind: str) -> list[Part]:
    """One evaluation's settings where they differ, and a loud note: such numbers do not compare."""
    found = {run: result for run, column in enumerate(columns) if (result := column.result(kind))}
    if len(found) < 2:
        return []
    flat = {}
    for run, result in found.items():
        model = result.model or {}
        flat[run] = {
            **flatten(result.config, WHICH_ROWS | FOLDERS),
            "seed": result.seed,
            "dtype": model.get("dtype"),
            "tokenizer": str(model["tokenizer"])[:8] if model.get("tokenizer") else None,
            "lm-eval": result.versions.get("lm-eval") if kind == "harness" else None,
        }
    names = differing(flat)
    prints = {run: result.data for run, result in found.items()}
    shared = set.intersection(*(set(each) for each in prints.values()))
    other = sorted(name for name in shared if len({each[name] for each in prints.values()}) > 1)
    for run in found:
        flat[run] |= {f"data {name}": prints[run][name][:8] for name in other}
    names += [f"data {name}" for name in other]
    if not names:
        return []
    said = f"{kind}: the runs were not evaluated alike (other: {', '.join(names)}), so their numbers may not compare."
    heads = [Head(kind), *(Head(columns[run].name, run) for run in found)]
    return [Note(said, loud=True), Table(f"Evaluation settings of {kind} that differ", heads, _rows(flat, names))]


def _rows(flat: Mapping[int, Mapping[str, Any]], names: Sequence[str]) -> list[tuple[str, list[Cell]]]:
    return [
        (HEADLINE.get(name, name), [Cell(numbers.setting(each.get(name))) for each in flat.values()]) for name in names
    ]


def flatten(values: Mapping[str, Any], without: set[str] | frozenset[str] = frozenset()) -> dict[str, Any]:
    """Nested mappings as one, inner names behind a dot."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name in without:
            continue
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def differing(flat: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Names whose values are not the same in all; one that is missing counts as None."""
    names = dict.fromkeys(name for each in flat.values() for name in each)
    first = next(iter(flat.values()))
    return sorted(name for name in names if any(each.get(name) != first.get(name) for each in flat.values()))
