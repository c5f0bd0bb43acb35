"""Numbers out of stored results, by the file's name; a quantity is called as the published tables call it.

Shares are in per cent. A row is a method; a result with one row calls it by no name: it is that of the run it lies in.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from evaluation import published
from evaluation.published import Quantity
from tape_ds import results
from tape_ds.results import WITHOUT_UPDATES, passkeys_of
from tape_ds.scoring.span_losses import SpanLosses

Numbers = dict[Quantity, float]
Rows = dict[str, Numbers]
"""Row -> its numbers; "" is the run that a result lies in."""
BY_UPDATES = "loss_by_updates"
"""What position updates add to the loss past the native length: a difference already, below 0 where they help."""


def read(path: Path) -> tuple[Rows, results.Result | None]:
    """Return the numbers of a file, and what it says of itself; nothing for a file that holds no numbers.

    Raises:
        UserError: a file that is no result.
    """
    if not is_read(path):
        return {}, None
    result = results.load(path)
    rows, changed = READERS[path.stem](result), _changed(result.model or {})
    if changed:
        rows = {
            row: {replace(quantity, metric=quantity.metric + changed): value for quantity, value in numbers.items()}
            for row, numbers in rows.items()
        }
    return rows, result


def _changed(model: Mapping[str, Any]) -> str:
    """Return what scoring changed of the run's model (RoPE scaled, updates off): such a number is not the run's."""
    scaling, updates = model.get("angles"), model.get("position_updates")
    return f", {scaling}" * bool(scaling) + f", {WITHOUT_UPDATES}" * (updates == "off")


def is_read(path: Path) -> bool:
    """Return whether a file holds numbers, by its name."""
    return path.suffix == ".json" and path.stem in READERS


def of_run(folder: Path) -> Iterator[tuple[Path, results.Result, Rows]]:
    """Yield a run's result and those of what was asked of it, with the numbers of each; a checkpoint's are not the
    run's."""
    for path in [folder / "results" / "run.json", *sorted(folder.glob("evaluation/**/*.json"))]:
        if any(part.startswith("checkpoint-") for part in path.relative_to(folder).parts):
            continue
        rows, result = read(path)
        if result is not None:
            yield path, result, rows


def trained(result: results.Result) -> Rows:
    """Of a launcher's run: what it scored itself, and what it cost; the untouched model is a row of its own."""
    figures, config = result.figures, result.config
    own: Numbers = {}
    rows: Rows = {"": own}
    if figures.get("perplexity"):  # of training from scratch, where there is text to score
        text = _text(config["eval_data"][0])
        own |= {
            Quantity(text, "perplexity", int(length)): each["perplexity"]
            for length, each in figures["perplexity"].items()
        }
    own |= _addressed(config.get("task") or "", figures.get("addressing") or [])
    scores = figures.get("loss_by_position") or {}
    made = next(reversed(scores), None)  # a run scores what it made last
    for variant in scores:
        if variant == made or variant == "untouched":
            numbers = rows.setdefault("" if variant == made else variant, {})
            numbers |= _losses(scores[variant], figures["native_length"])
            keys = passkeys_of(figures["passkey"], None if variant == made else variant)
            numbers |= {Quantity("passkey", "accuracy", e["length"]): 100 * e["correct"] / e["trials"] for e in keys}
    if (off := scores.get(f"{made}, {WITHOUT_UPDATES}")) is not None:
        own |= _by_updates(scores[str(made)], off, figures["native_length"])
    if figures.get("train_loss"):
        own[Quantity("", "train_loss")] = figures["train_loss"][-1]["loss"]
    own[Quantity("", "parameters")] = figures["parameters"]["all"]
    started, finished = (datetime.fromisoformat(str(each)) for each in (result.started, result.finished))
    own[Quantity("", "seconds")] = (finished - started).total_seconds()
    return rows


def addressing(result: results.Result) -> Rows:
    """Of ``python -m evaluation arithmetic`` on a task of addressing."""
    return {"": _addressed(result.figures["task"], result.figures["tests"])}


def _addressed(task: str, tests: Sequence[Mapping[str, Any]]) -> Numbers:
    return {
        Quantity(task, " ".join(["accuracy", *([e["kind"]] if e["kind"] else [])]), e["length"]): 100 * e["share"]
        for e in tests
    }


def _text(spec: str) -> str:
    """Return what a data source is called: as the published tables do, or by its kind."""
    return published.text_of(spec) or spec.partition(":")[0]


def _losses(documents: Mapping[str, Mapping[str, Any]], native: int) -> Numbers:
    """Means within and past the native length over all documents."""
    merged = SpanLosses.merge(SpanLosses.from_dict(each) for each in documents.values())
    found = {Quantity("", "loss_within_native"): merged.mean_between(0, native)}
    if merged.starts[-1] >= native:
        found = {Quantity("", "loss_past_native"): merged.mean_between(native)} | found
    return found


def _by_updates(on: Mapping[str, Any], off: Mapping[str, Any], native: int) -> Numbers:
    """Return a trained model less itself with its updates off, past the native length: over all documents, and of each
    with its standard error over spans."""
    found = {}
    for name in on:
        spans = zip(on[name]["starts"], on[name]["nll"], off[name]["nll"], strict=True)
        found[name] = [mine - theirs for start, mine, theirs in spans if start >= native]
    every = [each for differences in found.values() for each in differences]
    numbers = {Quantity("", BY_UPDATES): fmean(every)} if every else {}
    for name, differences in found.items():
        if len(differences) > 1:
            error = stdev(differences) / math.sqrt(len(differences))
            numbers |= {Quantity("", f"{BY_UPDATES}, {name}"): fmean(differences)}
            numbers |= {Quantity("", f"{BY_UPDATES}, {name}, standard error"): error}
    return numbers


def perplexity(result: results.Result) -> Rows:
    """Of ``python -m evaluation perplexity``."""
    found = {}
    for each in result.figures["perplexity"]:
        text = published.text_of(each["source"])
        table = next(published.tables_for([Quantity(text or "", "perplexity", each["length"])]), None)
        theirs = table is None or table.convention == each["convention"]
        metric = "perplexity" if theirs else f"perplexity ({each['convention']})"
        found[Quantity(text or each["source"], metric, each["length"])] = each["perplexity"]
    return {"": found}


def passkeys(result: results.Result) -> Rows:
    """Of ``python -m evaluation passkey``: found among those asked at a length."""
    protocol, asked = result.config.get("protocol"), result.figures["passkeys"]
    task = "multikey" if protocol == "multikey" else "passkey"
    metric = "accuracy, own prompts" if protocol == "grid" else "accuracy"
    return {"": {Quantity(task, metric, each["length"]): 100 * each["correct"] / each["trials"] for each in asked}}


def scrolls(result: results.Result) -> Rows:
    """Of a ``scrolls.json``, which an earlier version wrote."""
    asked = result.figures["datasets"].items()
    return {"": {Quantity(name, each["metric"]): each["score"] for name, each in asked if each["score"] is not None}}


def harness(result: results.Result) -> Rows:
    """Of ``python -m evaluation harness``. Groups stand for their members."""
    groups = result.figures.get("groups") or {}
    members = {name for group in groups.values() for name in group.get("tasks") or []}
    tasks = {name: each for name, each in result.figures["tasks"].items() if name not in members}
    metrics = {"acc": "accuracy", "acc_norm": "accuracy"}
    found = {}
    for name, each in {**tasks, **groups}.items():
        if each["value"] is not None:
            published_name = name.removeprefix("tape_").removeprefix("scrolls_")
            found[Quantity(published_name, metrics.get(each["metric"], each["metric"]))] = 100 * each["value"]
    return {"": found}


def arithmetic(result: results.Result) -> Rows:
    """Of ``python -m evaluation arithmetic``: the mean as published, to twice the trained lengths, and those of the
    parts that were and were not trained."""
    figures = result.figures
    task = f"{figures['task']}_{figures['trained'][0]}"
    metrics = {"twice": "exact_match", "beyond": "exact_match beyond", "trained": "exact_match within"}
    found = {name: figures["means"][part]["value"] for part, name in metrics.items()}
    return {"": {Quantity(task, name): 100 * value for name, value in found.items() if value is not None}}


def flops(result: results.Result) -> Rows:
    """Of ``tools/flops.py --table3``: what this project counts, in the paper's convention and in the other."""
    columns = {
        "FLOPs (G)": Quantity("cost", "gflop"),
        "MACs (G)": Quantity("cost", "gmac"),
        "parameters (M)": Quantity("cost", "parameters"),
        "MACs causal (G)": Quantity("cost", "gmac, causal"),
    }
    rows = {}
    for row in result.figures["rows"]:
        if row["count"] != "published":
            label = row["encoding"] if row["count"] == "this project" else f"{row['encoding']}, {row['count']}"
            rows[label] = {columns[name]: row[name] for name in columns if row[name] is not None}
    return rows


def stability(result: results.Result) -> Rows:
    """Of ``tools/stability.py``: in the units of Table 8's halves, which the names of tasks tell apart."""
    rows: Rows = {}
    for row in result.figures["models"]:
        found = rows.setdefault(row["name"], {})
        for treatment, moved in row["mean"].items():
            for layer, figures in moved["layers"].items():
                found[Quantity(treatment, f"layer {layer}")] = 100 * figures["attention_l1"]
                if figures["positions_percent"] is not None:
                    found[Quantity(f"{treatment}, positions", f"layer {layer}")] = figures["positions_percent"]
    return rows


def differences(result: results.Result) -> Rows:
    """Of ``tools/visualise.py``: how far two models' attention is apart in each layer, 0 to 2."""
    found = result.figures.get("attention_l1_between_models") or {}
    names = " - ".join(each["name"] for each in result.figures["models"])
    return {names: {Quantity("attention L1", f"layer {layer}"): value for layer, value in found.items()}}


READERS: dict[str, Callable[[results.Result], Rows]] = {
    "run": trained,
    "perplexity": perplexity,
    "passkey": passkeys,
    "scrolls": scrolls,
    "harness": harness,
    "arithmetic": arithmetic,
    "addressing": addressing,
    "table3": flops,
    "stability": stability,
    "visualise": differences,
}
"""A file's name without its ending -> how its numbers are read."""


def ordered(rows: Iterable[Mapping[Quantity, Any]]) -> list[Quantity]:
    """Return all there are numbers of: in the order in which they were found, lengths of one kind ascending."""
    found = list(dict.fromkeys(quantity for numbers in rows for quantity in numbers))
    kinds = list(dict.fromkeys((quantity.task, quantity.metric) for quantity in found))
    return sorted(found, key=lambda each: (kinds.index((each.task, each.metric)), each.length or 0))
