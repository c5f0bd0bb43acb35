"""lm-eval's results in this project's terms: one metric of each task stands for it, all of them are kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from tape_ds.markdown_table import markdown_table

PREFERRED = ("acc_norm", "acc", "exact_match", "f1", "rouge")
"""Which of a task's metrics stands for it, the first it has; else its first. ``acc_norm`` weighs log-likelihoods by the
answers' lengths: it is what ARC and HellaSwag are published with."""
NOT_RUN = -1
"""What RULER gives for a length that was not asked for."""


def figures(results: Mapping[str, Any], cut: Mapping[str, int]) -> dict[str, Any]:
    """Return figures of ``harness.json``: ``tasks`` and ``groups`` by name, and what was ``cut``."""
    subtasks = {name: list(each) for name, each in results.get("group_subtasks", {}).items()}
    tasks = {
        name: summarise(each, results["n-shot"].get(name), results["n-samples"][name]["effective"])
        for name, each in sorted(results["results"].items())
        if name not in subtasks
    }
    groups = {}
    for name, each in sorted(results.get("groups", {}).items()):
        samples = sum(results["n-samples"][task]["effective"] for task in leaves(name, subtasks))
        groups[name] = {**summarise(each, results["n-shot"].get(name), samples), "tasks": subtasks[name]}
    return {"tasks": tasks, "groups": {n: g for n, g in groups.items() if g["metric"] is not None}, "cut": dict(cut)}


def summarise(scores: Mapping[str, Any], shots: int | None, samples: int) -> dict[str, Any]:
    """Return one task's or group's entry. ``metrics`` has all of them, by ``metric,filter`` as lm-eval writes it."""
    named = {key: value for key, value in scores.items() if "," in key and "_stderr," not in key}
    every = {
        key: {"value": value, "standard_error": _number(scores.get("{}_stderr,{}".format(*key.split(",", 1))))}
        for key, value in named.items()
        if _number(value) is not None and value != NOT_RUN
    }
    main = _main(list(every))
    metric, used_filter = main.split(",", 1) if main is not None else (None, "none")
    entry: dict[str, Any] = {"metric": metric, "value": None, "standard_error": None}
    entry |= every[main] if main is not None else {}
    entry |= {"shots": shots, "samples": samples, "metrics": every}
    return entry if used_filter == "none" else {**entry, "filter": used_filter}


def leaves(name: str, subtasks: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the tasks of a group and of the groups in it."""
    if name not in subtasks:
        return {name}
    return set().union(*(leaves(each, subtasks) for each in subtasks[name]))


def table(found: Mapping[str, Any]) -> str:
    """Groups and tasks as a markdown table, and what was cut."""
    rows = []
    for name, entry in [*found["groups"].items(), *found["tasks"].items()]:
        shots = "" if entry["shots"] is None else str(entry["shots"])
        value, error = ("" if entry[each] is None else f"{entry[each]:.4f}" for each in ("value", "standard_error"))
        rows.append([name, entry["metric"] or "", shots, value, error, f"{entry['samples']:,}"])
    text = markdown_table(["task", "metric", "shots", "value", "standard error", "samples"], rows, "llr")
    cut = found["cut"]
    note = f"\n\ncut: {cut['tokens']:,} tokens of {cut['requests']:,} requests that were too long"
    return text + note if cut["requests"] else text


def _main(keys: Sequence[str]) -> str | None:
    for metric in PREFERRED:
        for key in keys:
            if key.split(",", 1)[0] == metric:
                return key
    return keys[0] if keys else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
