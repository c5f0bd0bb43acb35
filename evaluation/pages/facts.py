"""Sections of what was run and whether it was evaluated alike, what it cost, and where each number comes from."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from evaluation import published
from evaluation.pages import numbers, tables
from evaluation.pages.columns import NEEDED, RUN, Column, Record, Unused
from evaluation.pages.parts import MISSING, Head, Note, Part, Section, Table
from tape_ds.results import Result

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
    "tokens trained": "tokens trained",
    "parameters trained": "parameters trained",
}
"""Fields of a recipe and figures that are shown even where all runs agree."""
OF_STEPS = ("max_steps", "global_batch_size", "learning_rate", "window")
"""Those that say nothing of a run that made no step."""
FOLDERS = frozenset({"output_dir", "resume_from_checkpoint", "data_cache"})
WHICH_ROWS = frozenset({"evaluation", "lengths", "depths", "data", "datasets", "tasks", "spans"})
"""Options that decide which numbers there are, not what they are; a page's rows show them."""
MODEL_FACTS = ("address", "encoding", "dtype", "native_length", "tokenizer", "rope_parameters", "kind")
TRAINING = ("tokens", "tokens_per_second", "peak_memory_bytes", "steps", "skipped_steps")
RESUMED = "Times are of the last start: of something that was interrupted, its last part."
Facts = dict[int, dict[str, Any]]
"""Run -> name -> value."""


def settings(columns: Sequence[Column]) -> Section:
    """Training settings, evaluation settings, and notes on what does not compare."""
    runs = _of(columns, RUN)
    recipes = {run: _recipe(result) for run, result in runs.items()}
    parts: list[Part] = []
    if recipes:
        names = [name for name in HEADLINE if any(name in each for each in recipes.values())]
        others = [name for name in _differing(recipes) if name not in names]
        parts.append(_table("Training: the main settings", "training", columns, recipes, names))
        caption = "Training: every other setting that differs"
        parts += [_table(caption, "training", columns, recipes, others)] if others else []
    models = {run: model for run, column in enumerate(columns) if (model := _model(column))}
    if models:
        names = list(dict.fromkeys(name for each in models.values() for name in each if each[name] is not None))
        parts.append(_table("Models that were evaluated", "model", columns, models, names))
    other = _changed([result.data for result in runs.values()])
    parts += [Note(f"The contents of {', '.join(other)} are not the same for all runs.", loud=True)] if other else []
    for kind in NEEDED:
        parts += _evaluation(columns, kind) if kind != RUN else []
    return Section("What was run", parts or [Note("No settings were stored.")])


def _of(columns: Sequence[Column], kind: str) -> dict[int, Result]:
    return {run: result for run, column in enumerate(columns) if (result := column.result(kind))}


def _table(caption: str, corner: str, columns: Sequence[Column], found: Facts, names: Sequence[str]) -> Table:
    rows = [
        (HEADLINE.get(name, name), [numbers.setting(name, each.get(name)) for each in found.values()]) for name in names
    ]
    return Table(caption, [Head(corner), *tables.heads(columns, list(found))], rows)


def _differing(found: Facts) -> list[str]:
    """Names whose values are not the same for all, sorted; one that is missing counts as None."""
    frame = pd.DataFrame({run: pd.Series(each, dtype=object) for run, each in found.items()}).map(repr)
    return sorted(frame.index[frame.replace("nan", "None").nunique(axis=1) > 1])


def _changed(data: Sequence[Mapping[str, str]]) -> list[str]:
    """Addresses under which there was not the same everywhere."""
    names = dict.fromkeys(name for each in data for name in each)
    return [name for name in names if len({each[name] for each in data if name in each}) > 1]


def _recipe(result: Result) -> dict[str, Any]:
    """A recipe with DeepSpeed's part as its ZeRO stage: the rest decides memory and speed, not what is trained."""
    stage = ((result.config.get("deepspeed") or {}).get("zero_optimization") or {}).get("stage")
    trained = (result.figures.get("parameters") or {}).get("trained")
    flat = _flat(result.config, FOLDERS | {"deepspeed"}) | {"ZeRO stage": stage}
    if result.figures.get("steps") == 0:
        flat |= dict.fromkeys(OF_STEPS)
    return flat | {"tokens trained": result.figures.get("tokens"), "parameters trained": trained}


def _model(column: Column) -> dict[str, Any]:
    """Facts of the model that evaluations loaded."""
    models = [record.result.model for record in column.records.values() if record.result.model]
    facts = {name: models[0].get(name) for name in MODEL_FACTS} if models else {}
    return _flat(facts | {"tokenizer": (facts["tokenizer"] or "")[:8] or None}) if facts else {}


def _flat(values: Mapping[str, Any], without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Nested mappings as one, inner names behind a dot."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in without:
            flat |= {f"{name}.{inner}": each for inner, each in _flat(value).items()}
        elif name not in without:
            flat[name] = value
    return flat


def _evaluation(columns: Sequence[Column], kind: str) -> list[Part]:
    """One evaluation's settings where they differ, and a loud note: such numbers do not compare."""
    results = _of(columns, kind)
    if len(results) < 2:
        return []
    data = [result.data for result in results.values()]
    other = sorted(set.intersection(*map(set, data)) & set(_changed(data)))
    found = {}
    for run, result in results.items():
        model = result.model or {}
        found[run] = {
            **_flat(result.config, WHICH_ROWS | FOLDERS),
            "seed": result.seed,
            "dtype": model.get("dtype"),
            "tokenizer": (model.get("tokenizer") or "")[:8] or None,
            "lm-eval": result.versions.get("lm-eval") if kind == "harness" else None,
        }
    names = _differing(found) + [f"data {name}" for name in other]
    for run, result in results.items():
        found[run] |= {f"data {name}": result.data[name][:8] for name in other}
    if not names:
        return []
    said = f"{kind}: the runs were not evaluated alike (other: {', '.join(names)}), so their numbers may not compare."
    return [Note(said, loud=True), _table(f"Evaluation settings of {kind} that differ", kind, columns, found, names)]


def costs(columns: Sequence[Column]) -> Section | None:
    """Tokens, time, memory and the machine: a table for training and one for each kind of evaluation."""
    parts: list[Part] = []
    for kind in NEEDED:
        found = {run: _cost(record) for run, c in enumerate(columns) if (record := c.records.get(kind))}
        title = "training" if kind == RUN else kind
        if found:
            names = dict.fromkeys(name for each in found.values() for name in each)
            rows = [(_called(n), [numbers.cost(n, each.get(n)) for each in found.values()]) for n in names]
            heads = [Head(title), *tables.heads(columns, list(found))]
            parts.append(Table(f"Cost of {title}", heads, rows))
        if len({(each["processor"], each["processes"]) for each in found.values()}) > 1:
            said = f"{title}: not the same machine or number of processes; times do not compare."
            parts.append(Note(said, loud=True))
    return Section("Cost", [Note(RESUMED), *parts]) if parts else None


def _cost(record: Record) -> dict[str, Any]:
    """Figures of cost, under names whose endings say their unit."""
    figures, machine = record.result.figures, record.result.hardware
    own = {n: figures.get(n) for n in TRAINING} if record.kind == RUN else _flat(figures.get("cost") or {})
    gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
    processor = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or machine.get("cpu")
    known = {"seconds": record.seconds} | {n: value for n, value in own.items() if isinstance(value, int | float | str)}
    return known | {"processor": processor, "cores": machine.get("cores"), "processes": machine.get("processes")}


def _called(name: str) -> str:
    """``peak_memory_bytes`` -> ``peak memory``: the unit stands with the number."""
    words = {"seconds": "time", "tokens_per_second": "tokens/s"}
    return words.get(name, re.sub("_(bytes|seconds)$", "", name).replace("_", " "))


def origins(columns: Sequence[Column], unused: Sequence[Unused]) -> Section:
    """Every file that was used, what made it, and every file that was not used and why."""
    found = [(column.name, record) for column in columns for record in column.records.values()]
    results = [record.result for _, record in found]
    versions = {
        name: list(dict.fromkeys(e.versions.get(name) or MISSING for e in results))
        for e in results
        for name in e.versions
    }
    prints = {pair for result in results for pair in result.data.items()}
    models = [result.model for result in results if result.model and result.model.get("sha256")]
    prints |= {(str(model.get("address")), str(model["sha256"])) for model in models}
    names = ("run", "evaluation", "finished", "seed", "commit", "model", "file")
    commands = [(f"{name}, {record.kind}", shlex.join(record.result.command)) for name, record in found]
    parts: list[Part] = [
        Table("Stored results", list(map(Head, names)), [(name, _origin(record)) for name, record in found]),
        _pairs("Commands", "result", "command", commands),
        _pairs(
            "Versions that made the results", "package", "version", [(n, ", ".join(v)) for n, v in versions.items()]
        ),
        _pairs("Fingerprints of data and models (SHA-256)", "what", "fingerprint", sorted(prints)),
    ]
    if unused:
        left = [(str(each.path), each.reason) for each in unused]
        parts.append(_pairs("Files that could not be used", "file", "why", left, folded=False))
    return Section("Where the numbers come from", parts)


def _origin(record: Record) -> list[str]:
    result, commit = record.result, record.result.commit or {}
    made = f"{commit['hash'][:12]}{' + changes' if commit.get('dirty') else ''}" if commit.get("hash") else MISSING
    model = str((result.model or {}).get("sha256", MISSING))[:12]
    return [record.kind, str(result.finished), numbers.setting("seed", result.seed), made, model, str(record.path)]


def _pairs(caption: str, first: str, second: str, pairs: Sequence[tuple[str, str]], *, folded: bool = True) -> Table:
    return Table(caption, [Head(first), Head(second)], [(name, [text]) for name, text in pairs], folded=folded)


def everything_published() -> Section:
    """All published tables, whether or not a figure of this page stands beside them."""
    parts: list[Part] = []
    for table in published.TABLES:
        heads = [Head("method"), *(Head(str(quantity).replace("_", " ")) for quantity in table.quantities)]
        rows = [
            (method, [tables.as_published(*table.value(method, each), "g") for each in table.quantities])
            for method in table.rows
        ]
        caption = f"{table.name}: {table.title}. {table.setting}; {table.unit}. Source: {table.source}."
        parts += [Table(caption, heads, rows, numeric=True, folded=True), *map(Note, table.caveats)]
    return Section("Published tables", parts)
