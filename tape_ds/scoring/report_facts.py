"""The report's last section: what was run, on what, with which settings, and at what cost."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup

from tape_ds.mappings import without
from tape_ds.numbers import duration, gibibytes
from tape_ds.scoring.report_columns import KINDS, RUN, Column, Record, Unused
from tape_ds.scoring.report_parts import HTML, MISSING, number

MAIN = (
    "model",
    "launcher",
    "method",
    "position_encoding",
    "target_length",
    "max_steps",
    "learning_rate",
    "window",
)
"""Settings that are shown even if all columns agree."""
LEFT_OUT = (
    "evaluation",
    "lengths",
    "depths",
    "data",
    "datasets",
    "tasks",
    "spans",
    "deepspeed",
    "output_dir",
    "resume_from_checkpoint",
    "data_cache",
)
"""Settings that choose rows of the tables, or change no number."""
MODEL = ("address", "kind", "sha256", "encoding", "native_length", "rope_parameters")
TRAINING = ("steps", "skipped_steps", "tokens", "tokens_per_second", "peak_memory_bytes")


def facts(columns: Sequence[Column], unused: Sequence[Unused]) -> list[Markup]:
    """Return a table for each kind of result, with a warning if evaluations differ, and the files left out."""
    parts = []
    for kind in KINDS:
        having = []
        # name -> column -> value
        settings: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        costs: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for column in columns:
            if kind in column.records:
                record = column.records[kind]
                having.append(column.name)
                for setting, value in _settings(record).items():
                    settings[setting][column.name] = value
                for fact, value in _costs(record).items():
                    costs[fact][column.name] = value

        differ = []
        for setting, values in [*settings.items()]:
            is_data = setting.startswith("data ")
            compared: Iterable[Any] = map(values.get, having)
            # data that another column did not read is no difference: a row of scores has the same data for all columns
            if is_data:
                compared = values.values()
            if len(set(map(repr, compared))) > 1:
                # a run may differ in all that it is compared for, but not in its data
                if is_data or kind != RUN:
                    differ.append(setting)
            elif setting not in MAIN and not is_data:
                del settings[setting]
        if differ:
            words = "evaluated alike"
            if kind == RUN:
                words = "trained on the same data"
            text = f"{kind}: not {words}, so numbers may not compare: {', '.join(differ)}."
            parts.append(HTML.warning(text))
        if having:
            rows = []
            for fact, values in [*settings.items(), *costs.items()]:
                rows.append([fact, *(with_unit(fact, values.get(name)) for name in having)])
            caption = f"Results of {kind}: main settings, others that differ, costs of the last start, and origin"
            parts.append(HTML.table(caption, [kind, *having], rows))
    left = [[str(path), reason] for path, reason in unused]
    if left:
        parts.append(HTML.table("Files that could not be used", ["file", "reason"], left))
    return parts


def with_unit(name: str, value: Any) -> str:
    """Return a value with the unit that its name ends with."""
    if value is None or value == "" or isinstance(value, bool):
        return {None: MISSING, "": MISSING, True: "yes", False: "no"}[value]
    if not isinstance(value, int | float):
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return str(value)
    if name.endswith("_bytes"):
        return gibibytes(value)
    if name.endswith("seconds") and value >= 60:
        return duration(value)
    if name.endswith("second"):
        return number(value)
    return f"{value:,}"


def _settings(record: Record) -> dict[str, Any]:
    result = record.result
    model = result.model or {}
    settings = without(result.config, LEFT_OUT)
    # of DeepSpeed's configuration only the ZeRO stage: the rest decides memory and speed
    deepspeed = result.config.get("deepspeed") or {}
    settings |= {
        "ZeRO stage": (deepspeed.get("zero_optimization") or {}).get("stage"),
        "seed": result.seed,
        "dtype": model.get("dtype"),
        "tokenizer": (model.get("tokenizer") or "")[:12],
        "lm-eval": result.versions.get("lm-eval") if record.kind == "harness" else None,
    }
    for source, digest in result.data.items():
        settings[f"data {source}"] = digest[:12]
    return settings


def _costs(record: Record) -> dict[str, Any]:
    result = record.result
    costs: dict[str, Any] = {}
    if result.model:
        costs = {f"model {fact}": result.model.get(fact) for fact in MODEL}
    started = datetime.fromisoformat(result.started)
    finished = datetime.fromisoformat(result.finished or "")
    costs["seconds"] = (finished - started).total_seconds()
    costs |= result.figures.get("cost") or {}
    if record.kind == RUN:
        costs |= {fact: result.figures.get(fact) for fact in TRAINING}
    gpus = Counter(gpu["name"] for gpu in result.hardware.get("gpus") or [])
    names = ", ".join(f"{count} x {name}" for name, count in gpus.items())
    commit = result.commit or {}
    versions = [f"{package} {version}" for package, version in result.versions.items()]
    return costs | {
        "processor": names or result.hardware.get("cpu"),
        "processes": result.hardware.get("processes"),
        "commit": (commit.get("hash") or "")[:12],
        "uncommitted changes": commit.get("dirty"),
        "versions": ", ".join(versions),
        "finished": result.finished,
        "command": shlex.join(result.command),
        "file": str(record.path),
    }
