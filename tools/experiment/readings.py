"""Read the numbers of stored results, with the names of the published tables; shares are in per cent.

The name of a file decides how it is read. A row is a method; the row "" is the run that a result belongs to.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tape_ds import results
from tape_ds.numbers import length as length_label
from tape_ds.results import WITHOUT_UPDATES, passkeys_of
from tape_ds.scoring.span_losses import SpanLosses
from tools.experiment import published
from tools.experiment.published import Quantity

Numbers = dict[Quantity, float]
Rows = dict[str, Numbers]
# Change of the loss past the native length by position updates: a difference in itself, below 0 if they help
BY_UPDATES = "loss_by_updates"


def is_read(path: Path) -> bool:
    """Return whether a file holds numbers, by its name."""
    return path.suffix == ".json" and path.stem in READERS


def read(path: Path) -> tuple[Rows, results.Result | None]:
    """Return the numbers of a file and its result; nothing for a file without numbers."""
    if not is_read(path):
        return {}, None
    result = results.load(path)
    rows = READERS[path.stem](result)
    # what scoring changed of the run's model (RoPE scaled, updates off): such a number is not the run's
    model = result.model or {}
    scaling = model.get("angles")
    updates = model.get("position_updates")
    changed = f", {scaling}" if scaling else ""
    if updates == "off":
        changed += f", {WITHOUT_UPDATES}"
    renamed = {}
    for row, numbers in rows.items():
        renamed[row] = {
            replace(quantity, metric=quantity.metric + changed): value
            for quantity, value in numbers.items()
        }
    return renamed, result


def of_run(folder: Path) -> Iterator[tuple[Path, results.Result, Rows]]:
    """Yield the results of a run and of its evaluations, except those of its checkpoints, with their numbers."""
    for path in [folder / "results" / "run.json", *sorted(folder.glob("evaluation/**/*.json"))]:
        if any(part.startswith("checkpoint-") for part in path.relative_to(folder).parts):
            continue
        rows, result = read(path)
        if result is not None:
            yield path, result, rows


def trained(result: results.Result) -> Rows:
    """Read a training run: its own scores and cost, and the scores of the untouched model."""
    figures = result.figures
    config = result.config
    own: Numbers = {}
    rows: Rows = {"": own}
    if figures.get("perplexity"):  # of training from scratch on text
        spec = config["eval_data"][0]
        text = published.text_of(spec) or spec.partition(":")[0]
        for length, scored in figures["perplexity"].items():
            own[Quantity(text, "perplexity", int(length))] = scored["perplexity"]
    own |= _addressed(config.get("task") or "", figures.get("addressing") or [])

    native = figures.get("native_length", 0)
    scores = figures.get("loss_by_position") or {}
    # a run scores its trained model last
    made = next(reversed(scores), None)
    for variant in scores:
        if variant not in (made, "untouched"):
            continue
        numbers = rows.setdefault("" if variant == made else variant, {})
        losses = SpanLosses.merge(
            SpanLosses.from_dict(document) for document in scores[variant].values()
        )
        if losses.starts[-1] >= native:
            numbers[Quantity("", "loss_past_native")] = losses.mean_between(native)
        numbers[Quantity("", "loss_within_native")] = losses.mean_between(0, native)
        for asked in passkeys_of(figures["passkey"], None if variant == made else variant):
            numbers[Quantity("passkey", "accuracy", asked["length"])] = (
                100 * asked["correct"] / asked["trials"]
            )

    # the loss with updates minus the loss without, past the native length: over all documents, and of each document
    # with its standard error over spans
    off = scores.get(f"{made}, {WITHOUT_UPDATES}")
    differences: dict[str, list[float]] = {}
    for name, without_updates in (off or {}).items():
        on = scores[str(made)][name]
        spans = zip(on["starts"], on["nll"], without_updates["nll"], strict=True)
        differences[name] = [nll - without for start, nll, without in spans if start >= native]
    if every := [each for of_document in differences.values() for each in of_document]:
        own[Quantity("", BY_UPDATES)] = fmean(every)
    for name, of_document in differences.items():
        if len(of_document) > 1:
            error = stdev(of_document) / math.sqrt(len(of_document))
            own[Quantity("", f"{BY_UPDATES}, {name}")] = fmean(of_document)
            own[Quantity("", f"{BY_UPDATES}, {name}, standard error")] = error

    if figures.get("train_loss"):
        own[Quantity("", "train_loss")] = figures["train_loss"][-1]["loss"]
    own[Quantity("", "parameters")] = figures["parameters"]["all"]
    started, finished = (
        datetime.fromisoformat(str(when)) for when in (result.started, result.finished)
    )
    own[Quantity("", "seconds")] = (finished - started).total_seconds()
    return rows


def addressing(result: results.Result) -> Rows:
    return {"": _addressed(result.figures["task"], result.figures["tests"])}


def _addressed(task: str, tests: Sequence[Mapping[str, Any]]) -> Numbers:
    return {
        Quantity(task, f"accuracy {test['kind']}".rstrip(), test["length"]): 100 * test["share"]
        for test in tests
    }


def perplexity(result: results.Result) -> Rows:
    numbers = {}
    for each in result.figures["perplexity"]:
        text = published.text_of(each["source"])
        asked = Quantity(text or "", "perplexity", each["length"])
        table = next((table for table in published.TABLES if asked in table.quantities), None)
        alike = table is None or table.convention == each["convention"]
        metric = "perplexity" if alike else f"perplexity ({each['convention']})"
        numbers[Quantity(text or each["source"], metric, each["length"])] = each["perplexity"]
    return {"": numbers}


def passkeys(result: results.Result) -> Rows:
    protocol = result.config.get("protocol")
    asked = result.figures["passkeys"]
    task = "multikey" if protocol == "multikey" else "passkey"
    metric = "accuracy, own prompts"
    if protocol in ("published", "multikey"):
        metric = "accuracy"
    return {
        "": {
            Quantity(task, metric, each["length"]): 100 * each["correct"] / each["trials"]
            for each in asked
        }
    }


def harness(result: results.Result) -> Rows:
    """Read lm-eval's tasks; a group replaces its members."""
    groups = result.figures.get("groups") or {}
    members = {name for group in groups.values() for name in group.get("tasks") or []}
    tasks = {name: each for name, each in result.figures["tasks"].items() if name not in members}
    metrics = {"acc": "accuracy", "acc_norm": "accuracy"}
    numbers = {}
    for name, each in {**tasks, **groups}.items():
        if each["value"] is not None:
            published_name = name.removeprefix("tape_").removeprefix("scrolls_")
            numbers[Quantity(published_name, metrics.get(each["metric"], each["metric"]))] = (
                100 * each["value"]
            )
    return {"": numbers}


def arithmetic(result: results.Result) -> Rows:
    """Read the means as published, to twice the trained lengths, and of the parts beyond and within training."""
    figures = result.figures
    task = f"{figures['task']}_{figures['trained'][0]}"
    metrics = {
        "twice": "exact_match",
        "beyond": "exact_match beyond",
        "trained": "exact_match within",
    }
    found = {name: figures["means"][part]["value"] for part, name in metrics.items()}
    return {
        "": {
            Quantity(task, name): 100 * value for name, value in found.items() if value is not None
        }
    }


def ruler(result: results.Result) -> Rows:
    """Read RULER's scores: of each task and length, the tasks' mean at a length, and the mean of the lengths that were
    asked together."""
    figures = result.figures
    numbers = {
        Quantity(each["task"], "accuracy", each["length"]): 100 * each["score"]
        for each in figures["cells"]
    }
    by_length = {each["length"]: 100 * each["mean"] for each in figures["lengths"]}
    numbers |= {Quantity("ruler", "accuracy", length): mean for length, mean in by_length.items()}
    if len(by_length) > 1:
        ends = " to ".join(length_label(length) for length in (min(by_length), max(by_length)))
        numbers[Quantity("ruler", f"accuracy {ends}")] = fmean(by_length.values())
    return {"": numbers}


def flops(result: results.Result) -> Rows:
    """Read ``table3.json`` of tools.experiments.flops: this project's counts, in both conventions."""
    columns = {
        "FLOPs (G)": Quantity("cost", "gflop"),
        "MACs (G)": Quantity("cost", "gmac"),
        "parameters (M)": Quantity("cost", "parameters"),
        "MACs causal (G)": Quantity("cost", "gmac, causal"),
    }
    rows = {}
    for row in result.figures["rows"]:
        if row["count"] != "published":
            label = (
                row["encoding"]
                if row["count"] == "this project"
                else f"{row['encoding']}, {row['count']}"
            )
            rows[label] = {columns[name]: row[name] for name in columns if row[name] is not None}
    return rows


def stability(result: results.Result) -> Rows:
    """Read the two halves of Table 8, as tasks of different names."""
    rows: Rows = {}
    for row in result.figures["models"]:
        numbers = rows.setdefault(row["name"], {})
        for treatment, moved in row["mean"].items():
            for layer, figures in moved["layers"].items():
                numbers[Quantity(treatment, f"layer {layer}")] = 100 * figures["attention_l1"]
                if figures["positions_percent"] is not None:
                    numbers[Quantity(f"{treatment}, positions", f"layer {layer}")] = figures[
                        "positions_percent"
                    ]
    return rows


def differences(result: results.Result) -> Rows:
    """Read the L1 distance of two models' attention in each layer, 0 to 2."""
    found = result.figures.get("attention_l1_between_models") or {}
    names = " - ".join(each["name"] for each in result.figures["models"])
    return {
        names: {Quantity("attention L1", f"layer {layer}"): value for layer, value in found.items()}
    }


# By the name of the file without its ending
READERS: dict[str, Callable[[results.Result], Rows]] = {
    "run": trained,
    "perplexity": perplexity,
    "passkey": passkeys,
    "harness": harness,
    "ruler": ruler,
    "arithmetic": arithmetic,
    "addressing": addressing,
    "table3": flops,
    "stability": stability,
    "visualise": differences,
}


def ordered(rows: Iterable[Mapping[Quantity, Any]]) -> list[Quantity]:
    """Return all quantities in the order in which they occur, lengths of one kind ascending."""
    found = list(dict.fromkeys(quantity for numbers in rows for quantity in numbers))
    kinds = list(dict.fromkeys((quantity.task, quantity.metric) for quantity in found))
    return sorted(found, key=lambda each: (kinds.index((each.task, each.metric)), each.length or 0))
