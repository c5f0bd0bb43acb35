"""Sections of what was run and whether it was evaluated alike, what it cost, and where each number comes from."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from evaluation.pages import numbers
from evaluation.pages.columns import KINDS, RUN, Column, Record, Unused, of
from evaluation.pages.numbers import MISSING
from evaluation.pages.parts import Head, Note, PageSection, PageTable, Part

OF_STEPS = ("max_steps", "global_batch_size", "learning_rate", "window")
"""Fields that say nothing of a run that made no step."""
MAIN = (
    "model",
    "launcher",
    "method",
    "position_encoding",
    "target_length",
    *OF_STEPS,
    "tokens trained",
    "parameters trained",
)
"""Fields of a recipe and figures that are shown even where all runs agree."""
FOLDERS = ("output_dir", "resume_from_checkpoint", "data_cache")
WHICH_ROWS = ("evaluation", "lengths", "depths", "data", "datasets", "tasks", "spans")
"""Options that decide which numbers there are, not what they are; a page's rows show them."""
MODEL_FACTS = ("address", "encoding", "dtype", "native_length", "rope_parameters", "kind")
TRAINING = ("tokens", "tokens_per_second", "peak_memory_bytes", "steps", "skipped_steps")
Facts = dict[int, dict[str, Any]]
"""Run -> name -> value."""


def settings(columns: Sequence[Column]) -> PageSection:
    """Training settings, evaluation settings, and notes on what does not compare."""
    parts: list[Part] = []
    runs = of(columns, RUN)
    recipes: Facts = {}
    for run, result in runs.items():
        # DeepSpeed's part as its ZeRO stage: the rest decides memory and speed, not what is trained
        stage = ((result.config.get("deepspeed") or {}).get("zero_optimization") or {}).get("stage")
        trained = (result.figures.get("parameters") or {}).get("trained")
        recipes[run] = _flat(result.config, *FOLDERS, "deepspeed") | {"ZeRO stage": stage}
        recipes[run] |= dict.fromkeys(OF_STEPS) if result.figures.get("steps") == 0 else {}
        recipes[run] |= {"tokens trained": result.figures.get("tokens"), "parameters trained": trained}
    names = [name for name in MAIN if any(name in each for each in recipes.values())]
    others = [name for name in _differing(recipes) if name not in names]
    parts += _table("Training: the main settings", "training", columns, recipes, names)
    parts += _table("Training: every other setting that differs", "training", columns, recipes, others)
    models: Facts = {}
    for run, column in enumerate(columns):
        for model in [record.result.model for record in column.records.values() if record.result.model][:1]:
            models[run] = _flat({name: model.get(name) for name in MODEL_FACTS} | {"tokenizer": _tokenizer(model)})
    known = dict.fromkeys(name for each in models.values() for name in each if each[name] is not None)
    parts += _table("Models that were evaluated", "model", columns, models, list(known))
    if other := _changed([result.data for result in runs.values()]):
        parts.append(Note(f"The contents of {', '.join(other)} are not the same for all runs.", loud=True))
    for kind in KINDS:
        parts += _evaluation(columns, kind) if kind != RUN else []
    return PageSection("What was run", parts or [Note("No settings were stored.")])


def _evaluation(columns: Sequence[Column], kind: str) -> list[Part]:
    """Return one evaluation's settings where they differ, and a loud note: such numbers do not compare."""
    found: Facts = {}
    results = of(columns, kind)
    data = [result.data for result in results.values()]
    other = [name for name in _changed(data) if all(name in each for each in data)]
    for run, result in results.items():
        model = result.model or {}
        found[run] = _flat(result.config, *WHICH_ROWS, *FOLDERS)
        found[run] |= {"seed": result.seed, "dtype": model.get("dtype"), "tokenizer": _tokenizer(model)}
        found[run] |= {"lm-eval": result.versions.get("lm-eval")} if kind == "harness" else {}
        found[run] |= {f"data {name}": result.data[name][:8] for name in other}
    names = _differing(found)
    if not names:
        return []
    note = f"{kind}: the runs were not evaluated alike (other: {', '.join(names)}), so their numbers may not compare."
    table = _table(f"Evaluation settings of {kind} that differ", kind, columns, found, names)
    return [Note(note, loud=True), *table]


def _table(caption: str, corner: str, columns: Sequence[Column], found: Facts, names: Iterable[str]) -> list[PageTable]:
    """Return a row for each name; none without rows."""
    rows = []
    for name in names:
        words = re.sub("_(bytes|seconds)$", "", name).replace("_", " ")  # the unit stands with the number
        rows.append((words, [numbers.setting(name, each.get(name)) for each in found.values()]))
    return [PageTable(caption, [Head(corner), *(Head(columns[run].name, run) for run in found)], rows)] if rows else []


def _differing(found: Facts) -> list[str]:
    """Return names whose values are not the same for all, sorted; one that is missing counts as None."""
    names = sorted({name for each in found.values() for name in each})
    return [name for name in names if len({repr(each.get(name)) for each in found.values()}) > 1]


def _changed(data: Sequence[Mapping[str, str]]) -> list[str]:
    """Data specs under which there was not the same everywhere."""
    names = sorted({name for each in data for name in each})
    return [name for name in names if len({each[name] for each in data if name in each}) > 1]


def _flat(values: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Nested mappings as one, inner names behind a dot."""
    kept = {name: value for name, value in values.items() if name not in without}
    flat: dict[str, Any] = pd.json_normalize(kept).astype(object).to_dict("records")[0] if kept else {}
    return flat


def _tokenizer(model: Mapping[str, Any]) -> str | None:
    """Return the beginning of its fingerprint."""
    return (model.get("tokenizer") or "")[:8] or None


def costs(columns: Sequence[Column]) -> PageSection | None:
    """Return tokens, time, memory and the machine: a table for training and one for each kind of evaluation."""
    parts: list[Part] = []
    for kind in KINDS:
        found = {run: _cost(c.records[kind]) for run, c in enumerate(columns) if kind in c.records}
        title = "training" if kind == RUN else kind
        names = dict.fromkeys(name for each in found.values() for name in each)
        parts += _table(f"Cost of {title}", title, columns, found, names)
        if len({(each["processor"], each["processes"]) for each in found.values()}) > 1:
            warning = f"{title}: not the same machine or number of processes; times do not compare."
            parts.append(Note(warning, loud=True))
    resumed = Note("Times are of the last start: of something that was interrupted, its last part.")
    return PageSection("Cost", [resumed, *parts]) if parts else None


def _cost(record: Record) -> dict[str, Any]:
    """Return figures of cost, under names whose endings say their unit."""
    result, machine = record.result, record.result.hardware
    spent = datetime.fromisoformat(result.finished or "") - datetime.fromisoformat(result.started)
    own = _flat(result.figures.get("cost") or {})
    if record.kind == RUN:
        own = {name: result.figures.get(name) for name in TRAINING}
    gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
    processor = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or machine.get("cpu")
    known = {"time_seconds": own.pop("seconds", spent.total_seconds())}
    known |= {name: value for name, value in own.items() if isinstance(value, int | float | str)}
    return known | {"processor": processor, "cores": machine.get("cores"), "processes": machine.get("processes")}


def origins(columns: Sequence[Column], unused: Sequence[Unused]) -> PageSection:
    """Return every file that was used, what made it, and every file that was not used and why."""
    stored, commands, prints = [], [], set()
    versions: dict[str, dict[str, None]] = {}
    found = [(column.name, record) for column in columns for record in column.records.values()]
    for name, record in found:
        result, commit, model = record.result, record.result.commit or {}, record.result.model or {}
        made = commit["hash"][:12] + (" + changes" if commit.get("dirty") else "") if commit.get("hash") else MISSING
        what = [record.kind, result.finished or MISSING, numbers.setting("seed", result.seed), made]
        stored.append((name, [*what, str(model.get("sha256") or MISSING)[:12], str(record.path)]))
        commands.append((f"{name}, {record.kind}", [shlex.join(result.command)]))
        prints |= set(result.data.items())
        prints |= {(str(model.get("address")), str(model["sha256"]))} if model.get("sha256") else set()
        for package, version in result.versions.items():
            versions.setdefault(package, {})[version] = None
    names = ("run", "evaluation", "finished", "seed", "commit", "model", "file")
    used = [(package, [", ".join(each)]) for package, each in versions.items()]
    parts: list[Part] = [
        PageTable("Stored results", [Head(name) for name in names], stored),
        PageTable("Commands", [Head("result"), Head("command")], commands, folded=True),
        PageTable("Versions that made the results", [Head("package"), Head("version")], used, folded=True),
    ]
    rows = [(what, [each]) for what, each in sorted(prints)]
    heads = [Head("what"), Head("fingerprint")]
    parts.append(PageTable("Fingerprints of data and models (SHA-256)", heads, rows, folded=True))
    if unused:
        left = [(str(path), [reason]) for path, reason in unused]
        parts.append(PageTable("Files that could not be used", [Head("file"), Head("why")], left))
    return PageSection("Where the numbers come from", parts)
