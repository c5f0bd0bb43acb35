"""The section of settings, costs and files."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup

from tape_ds.numbers import duration, gibibytes
from tape_ds.scoring.pages import html
from tape_ds.scoring.pages.columns import KINDS, RUN, Column, Record, Unused

MAIN = ("model", "launcher", "method", "position_encoding", "target_length", "max_steps", "learning_rate", "window")
"""Settings that are shown even if all columns agree."""
WHICH_ROWS = ("evaluation", "lengths", "depths", "data", "datasets", "tasks", "spans")
NO_MATTER = ("deepspeed", "output_dir", "resume_from_checkpoint", "data_cache")
"""Settings that change no number."""
MODEL = ("address", "kind", "encoding", "native_length", "rope_parameters")
TRAINING = ("steps", "skipped_steps", "tokens", "tokens_per_second", "peak_memory_bytes")


def section(columns: Sequence[Column], unused: Sequence[Unused]) -> list[Markup]:
    """Return a table for each kind of result, with a warning if evaluations differ, and the files left out."""
    parts = []
    for kind in KINDS:
        records = {at: column.records[kind] for at, column in enumerate(columns) if kind in column.records}
        if not records:
            continue
        settings, facts = [_settings(each) for each in records.values()], [_facts(each) for each in records.values()]
        rows, differ = [], []
        for name in dict.fromkeys(name for each in settings for name in each):
            is_data = name.startswith("data ")
            # data that another column did not read is no difference: a row of scores has the same data for all columns
            compared = {repr(each.get(name)) for each in settings if name in each or not is_data}
            differ += [name] if len(compared) > 1 else []
            if name in differ or name in MAIN or is_data:
                rows.append([name, *(text(name, each.get(name)) for each in settings)])
        if unlike := [name for name in differ if kind != RUN or name.startswith("data ")]:
            words = "trained on the same data" if kind == RUN else "evaluated alike"
            parts.append(html.warning(f"{kind}: not {words}, so numbers may not compare: {', '.join(unlike)}."))
        for name in dict.fromkeys(name for each in facts for name in each):
            rows.append([name, *(text(name, each.get(name)) for each in facts)])
        heads = [kind, *(html.keyed(columns[at].name, at) for at in records)]
        parts.append(html.table(f"Results of {kind}: main settings, others that differ, and facts", heads, rows))
    parts.append(html.note("Times are those of the last start, so an interrupted run shows its last part."))
    left = [[str(path), reason] for path, reason in unused]
    return parts + ([html.table("Files that could not be used", ["file", "reason"], left)] if left else [])


def _settings(record: Record) -> dict[str, Any]:
    """Return what decides the numbers of a result."""
    result, model = record.result, record.result.model or {}
    # of DeepSpeed's configuration only the ZeRO stage: the rest decides memory and speed
    stage = ((result.config.get("deepspeed") or {}).get("zero_optimization") or {}).get("stage")
    found = _flat({name: value for name, value in result.config.items() if name not in WHICH_ROWS + NO_MATTER})
    found |= {"ZeRO stage": stage, "seed": result.seed, "dtype": model.get("dtype")}
    found["tokenizer"] = (model.get("tokenizer") or "")[:12] or None
    found["lm-eval"] = result.versions.get("lm-eval") if record.kind == "harness" else None
    return found | {f"data {name}": digest[:12] for name, digest in result.data.items()}


def _facts(record: Record) -> dict[str, Any]:
    result, machine = record.result, record.result.hardware
    model, commit = result.model or {}, result.commit or {}
    found = _flat({f"model {name}": model[name] for name in MODEL if model.get(name) is not None})
    found |= {"model sha256": (model.get("sha256") or "")[:12] or None} if model else {}
    cost = _flat(result.figures.get("cost") or {})
    if record.kind == RUN:
        cost = {name: result.figures.get(name) for name in TRAINING}
        found["parameters trained"] = (result.figures.get("parameters") or {}).get("trained")
    spent = datetime.fromisoformat(result.finished or "") - datetime.fromisoformat(result.started)
    gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
    processor = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or machine.get("cpu")
    return found | {
        "seconds": spent.total_seconds(),
        **cost,
        "processor": processor,
        "cores": machine.get("cores"),
        "processes": machine.get("processes"),
        "finished": result.finished,
        "commit": (commit.get("hash") or "")[:12] or None,
        "uncommitted changes": commit.get("dirty"),
        "versions": ", ".join(f"{package} {version}" for package, version in result.versions.items()),
        "command": shlex.join(result.command),
        "file": str(record.path),
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with dots in the inner names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        is_nested = isinstance(value, Mapping) and value
        flat |= _flat(value, f"{prefix}{name}.") if is_nested else {f"{prefix}{name}": value}
    return flat


def text(name: str, value: Any) -> str:
    """Return a value with the unit that its name ends with."""
    if value is None or isinstance(value, bool):
        return {None: html.MISSING, True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return ", ".join(text(name, each) for each in value) or "none"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return gibibytes(value)
    if name.endswith("seconds") and value >= 60:
        return duration(value)
    return html.number(value) if name.endswith("second") else f"{value:,}"
