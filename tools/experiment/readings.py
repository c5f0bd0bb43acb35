"""Read the numbers of stored results, with the names of the published tables; shares are in per cent.

The name of a file decides how it is read. A row is a method; the row "" is the run that a result belongs to.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import itemgetter
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
    changed = ""
    if model.get("angles"):
        changed = f", {model['angles']}"
    if model.get("position_updates") == "off":
        changed += f", {WITHOUT_UPDATES}"
    renamed: Rows = {}
    for row, numbers in rows.items():
        renamed[row] = {}
        for quantity, value in numbers.items():
            renamed[row][replace(quantity, metric=quantity.metric + changed)] = value
    return renamed, result


def of_run(folder: Path) -> Iterator[tuple[Path, results.Result, Rows]]:
    """Yield the results of a run and of its evaluations, except those of its checkpoints, with their numbers."""
    for path in [folder / "results" / "run.json", *sorted(folder.glob("evaluation/**/*.json"))]:
        if "/checkpoint-" in f"/{path.relative_to(folder).as_posix()}":
            continue
        rows, result = read(path)
        if result is not None:
            yield path, result, rows


def trained(result: results.Result) -> Rows:
    """Read a training run: its own scores and cost, and the scores of the untouched model."""
    figures = result.figures
    config = result.config
    numbers: Numbers = {}
    rows: Rows = {"": numbers}
    # only training from scratch on text has it
    if figures.get("perplexity"):
        spec = config["eval_data"][0]
        text = published.text_of(spec) or spec.partition(":")[0]
        for length, scored in figures["perplexity"].items():
            numbers[Quantity(text, "perplexity", int(length))] = scored["perplexity"]
    numbers |= _addressed(config.get("task") or "", figures.get("addressing") or [])

    scores = figures.get("loss_by_position") or {}
    # a run scores its trained model last
    made = next(reversed(scores), None)
    if made is not None:
        numbers |= _losses(figures, made, None)
    if made != "untouched" and "untouched" in scores:
        rows["untouched"] = _losses(figures, "untouched", "untouched")
    numbers |= _by_updates(figures, made)

    if figures.get("train_loss"):
        numbers[Quantity("", "train_loss")] = figures["train_loss"][-1]["loss"]
    numbers[Quantity("", "parameters")] = figures["parameters"]["all"]
    started = datetime.fromisoformat(str(result.started))
    finished = datetime.fromisoformat(str(result.finished))
    numbers[Quantity("", "seconds")] = (finished - started).total_seconds()
    return rows


def addressing(result: results.Result) -> Rows:
    return {"": _addressed(result.figures["task"], result.figures["tests"])}


def _losses(figures: Mapping[str, Any], variant: str, asked_of: str | None) -> Numbers:
    """Return the losses of a variant of a run's model, and the passkeys of one (None: of the run's result)."""
    native = figures.get("native_length", 0)
    numbers = {}
    documents = figures["loss_by_position"][variant].values()
    losses = SpanLosses.merge(map(SpanLosses.from_dict, documents))
    if losses.starts[-1] >= native:
        numbers[Quantity("", "loss_past_native")] = losses.mean_between(native)
    numbers[Quantity("", "loss_within_native")] = losses.mean_between(0, native)

    for asked in passkeys_of(figures["passkey"], asked_of):
        share = 100 * asked["correct"] / asked["trials"]
        numbers[Quantity("passkey", "accuracy", asked["length"])] = share
    return numbers


def _by_updates(figures: Mapping[str, Any], made: str | None) -> Numbers:
    """Return the loss with updates minus the loss without, past the native length: over all documents, and of each
    document with its standard error over spans."""
    native = figures.get("native_length", 0)
    scores = figures.get("loss_by_position") or {}
    off = scores.get(f"{made}, {WITHOUT_UPDATES}") or {}
    every: list[float] = []
    of_documents = {}
    for name, without_updates in off.items():
        on = scores[str(made)][name]
        differences = []
        for start, nll, without in zip(
            on["starts"], on["nll"], without_updates["nll"], strict=True
        ):
            if start >= native:
                differences.append(nll - without)
        every += differences
        if len(differences) > 1:
            of_documents[Quantity("", f"{BY_UPDATES}, {name}")] = fmean(differences)
            error = stdev(differences) / math.sqrt(len(differences))
            of_documents[Quantity("", f"{BY_UPDATES}, {name}, standard error")] = error
    if every:
        return {Quantity("", BY_UPDATES): fmean(every), **of_documents}
    return {}


def _addressed(task: str, tests: Sequence[Mapping[str, Any]]) -> Numbers:
    numbers = {}
    for test in tests:
        metric = f"accuracy {test['kind']}".rstrip()
        numbers[Quantity(task, metric, test["length"])] = 100 * test["share"]
    return numbers


def perplexity(result: results.Result) -> Rows:
    numbers = {}
    for each in result.figures["perplexity"]:
        text = published.text_of(each["source"])
        asked = Quantity(text or "", "perplexity", each["length"])
        metric = "perplexity"
        table = next((table for table in published.TABLES if asked in table.quantities), None)
        # by another convention it is another quantity, which the published table has no row for
        if table is not None and table.convention != each["convention"]:
            metric = f"perplexity ({each['convention']})"
        numbers[Quantity(text or each["source"], metric, each["length"])] = each["perplexity"]
    return {"": numbers}


def passkeys(result: results.Result) -> Rows:
    protocol = result.config.get("protocol")
    task = "multikey" if protocol == "multikey" else "passkey"
    metric = "accuracy, own prompts"
    if protocol in ("published", "multikey"):
        metric = "accuracy"
    numbers = {}
    for asked in result.figures["passkeys"]:
        share = 100 * asked["correct"] / asked["trials"]
        numbers[Quantity(task, metric, asked["length"])] = share
    return {"": numbers}


def harness(result: results.Result) -> Rows:
    """Read lm-eval's tasks; a group replaces its members."""
    groups = result.figures.get("groups") or {}
    tasks = {**result.figures["tasks"], **groups}
    for group in groups.values():
        for member in group.get("tasks") or []:
            # a group may have the name of one of its tasks
            if member not in groups:
                tasks.pop(member, None)
    metrics = {"acc": "accuracy", "acc_norm": "accuracy"}
    numbers = {}
    for name, each in tasks.items():
        if each["value"] is not None:
            published_name = name.removeprefix("tape_").removeprefix("scrolls_")
            metric = metrics.get(each["metric"], each["metric"])
            numbers[Quantity(published_name, metric)] = 100 * each["value"]
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
    numbers = {}
    for part, name in metrics.items():
        share = figures["means"][part]["value"]
        if share is not None:
            numbers[Quantity(task, name)] = 100 * share
    return {"": numbers}


def ruler(result: results.Result, name: str = "ruler") -> Rows:
    """Read RULER's scores, or others of its form: of each task and length, the tasks' mean at a length, and the mean of
    the lengths that were asked together."""
    numbers = {}
    for cell in result.figures["cells"]:
        numbers[Quantity(cell["task"], "accuracy", cell["length"])] = 100 * cell["score"]
    by_length = {row["length"]: 100 * row["mean"] for row in result.figures["lengths"]}
    for length, mean in by_length.items():
        numbers[Quantity(name, "accuracy", length)] = mean
    if len(by_length) > 1:
        ends = f"{length_label(min(by_length))} to {length_label(max(by_length))}"
        numbers[Quantity(name, f"accuracy {ends}")] = fmean(by_length.values())
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
        if row["count"] == "published":
            continue
        label = row["encoding"]
        if row["count"] != "this project":
            label += f", {row['count']}"
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
                percent = figures["positions_percent"]
                # only TAPE's layers move positions
                if percent is not None:
                    numbers[Quantity(f"{treatment}, positions", f"layer {layer}")] = percent
    return rows


def differences(result: results.Result) -> Rows:
    """Read the L1 distance of two models' attention in each layer, 0 to 2."""
    distances = result.figures.get("attention_l1_between_models") or {}
    numbers = {}
    for layer, distance in distances.items():
        numbers[Quantity("attention L1", f"layer {layer}")] = distance
    names = map(itemgetter("name"), result.figures["models"])
    return {" - ".join(names): numbers}


# By the name of the file without its ending
READERS: dict[str, Callable[[results.Result], Rows]] = {
    "run": trained,
    "perplexity": perplexity,
    "passkey": passkeys,
    "harness": harness,
    "ruler": ruler,
    # of tools.experiments.generated_questions
    "retrieval": partial(ruler, name="retrieval"),
    "arithmetic": arithmetic,
    "addressing": addressing,
    "table3": flops,
    "stability": stability,
    "visualise": differences,
}


def ordered(rows: Iterable[Mapping[Quantity, Any]]) -> list[Quantity]:
    """Return all quantities in the order in which they occur, lengths of one kind ascending."""
    quantities = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    kinds: dict[tuple[str, str], int] = {}
    for quantity in quantities:
        kinds.setdefault((quantity.task, quantity.metric), len(kinds))
    return sorted(quantities, key=lambda each: (kinds[each.task, each.metric], each.length or 0))
