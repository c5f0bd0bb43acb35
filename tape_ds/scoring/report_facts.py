"""The report's last section: what was run, on what, with which settings, and at what cost."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup

from tape_ds.numbers import duration, gibibytes
from tape_ds.scoring.report_columns import KINDS, RUN, Column, Unused
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
    *(
        "evaluation",
        "lengths",
        "depths",
        "data",
        "datasets",
        "tasks",
        "spans",
        "deepspeed",
        "output_dir",
    ),
    *("resume_from_checkpoint", "data_cache"),
)
"""Settings that choose rows of the tables, or change no number."""
MODEL = ("address", "kind", "sha256", "encoding", "native_length", "rope_parameters")
TRAINING = ("steps", "skipped_steps", "tokens", "tokens_per_second", "peak_memory_bytes")


def facts(columns: Sequence[Column], unused: Sequence[Unused]) -> list[Markup]:
    """Return a table for each kind of result, with a warning if evaluations differ, and the files left out."""
    parts = []
    for kind in KINDS:
        records = {
            column.name: column.records[kind] for column in columns if kind in column.records
        }
        # name -> column -> value
        settings: dict[str, dict[str, Any]] = {}
        costs: dict[str, dict[str, Any]] = {}
        for name, (path, _, result) in records.items():
            model = result.model or {}
            machine = result.hardware
            commit = result.commit or {}
            own = {
                setting: value
                for setting, value in result.config.items()
                if setting not in LEFT_OUT
            }
            # of DeepSpeed's configuration only the ZeRO stage: the rest decides memory and speed
            own["ZeRO stage"] = (
                (result.config.get("deepspeed") or {}).get("zero_optimization") or {}
            ).get("stage")
            own |= {
                "seed": result.seed,
                "dtype": model.get("dtype"),
                "tokenizer": (model.get("tokenizer") or "")[:12],
            }
            own["lm-eval"] = result.versions.get("lm-eval") if kind == "harness" else None
            own |= {f"data {source}": digest[:12] for source, digest in result.data.items()}
            for setting, value in own.items():
                settings.setdefault(setting, {})[name] = value

            spent = datetime.fromisoformat(result.finished or "") - datetime.fromisoformat(
                result.started
            )
            gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
            names = ", ".join(f"{gpus.count(each)} x {each}" for each in dict.fromkeys(gpus))
            found = {f"model {fact}": model.get(fact) for fact in MODEL if model}
            found |= {"seconds": spent.total_seconds()} | (result.figures.get("cost") or {})
            if kind == RUN:
                found |= {fact: result.figures.get(fact) for fact in TRAINING}
            found |= {
                "processor": names or machine.get("cpu"),
                "processes": machine.get("processes"),
            }
            found |= {
                "commit": (commit.get("hash") or "")[:12],
                "uncommitted changes": commit.get("dirty"),
            }
            found["versions"] = ", ".join(
                f"{package} {version}" for package, version in result.versions.items()
            )
            found |= {
                "finished": result.finished,
                "command": shlex.join(result.command),
                "file": str(path),
            }
            for fact, value in found.items():
                costs.setdefault(fact, {})[name] = value

        differ = []
        for setting, values in [*settings.items()]:
            is_data = setting.startswith("data ")
            # data that another column did not read is no difference: a row of scores has the same data for all columns
            compared = values.values() if is_data else [values.get(name) for name in records]
            differ += [setting] if len(set(map(repr, compared))) > 1 else []
            if not (setting in differ or setting in MAIN or is_data):
                del settings[setting]
        if unlike := [setting for setting in differ if kind != RUN or setting.startswith("data ")]:
            words = "evaluated alike"
            if kind == RUN:
                words = "trained on the same data"
            parts.append(
                HTML.warning(
                    f"{kind}: not {words}, so numbers may not compare: {', '.join(unlike)}."
                )
            )
        if records:
            rows = []
            for fact, values in [*settings.items(), *costs.items()]:
                rows.append([fact, *(with_unit(fact, values.get(name)) for name in records)])
            caption = f"Results of {kind}: main settings, others that differ, costs of the last start, and origin"
            parts.append(HTML.table(caption, [kind, *records], rows))
    left = [[str(path), reason] for path, reason in unused]
    return parts + (
        [HTML.table("Files that could not be used", ["file", "reason"], left)] if left else []
    )


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
