"""Sections of tasks: SCROLLS, and the harness's tasks with their standard errors; published scores beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation import published
from evaluation.pages import tables
from evaluation.pages.columns import Column
from evaluation.pages.parts import Note, Part, Section
from evaluation.pages.tables import Score, Scores

METRICS = {"f1": "F1", "exact_match": "exact match", "rouge": "ROUGE, geometric mean"}
ACCURACIES = ("acc", "acc_norm")
UNLIKE = "Not the same number of samples (n): {rows}."


def scrolls(columns: Sequence[Column]) -> Section | None:
    """A row for each data set, a table for each split."""
    splits: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run, column in enumerate(columns):
        result = column.result("scrolls")
        if result is not None:
            splits.setdefault(str(result.figures.get("split")), {})[run] = result.figures["datasets"]
    order = [quantity.task for quantity in published.find("Table 1").quantities]
    parts: list[Part] = []
    for split, found in sorted(splits.items()):
        scores, wanted, cut = [], {}, dict[str, list[str]]()
        for run, datasets in found.items():
            for name, each in datasets.items():
                row = f"{name}, {METRICS.get(each['metric'], each['metric'])}"
                wanted[row] = published.Quantity(name, each["metric"])
                scores.append(Score(run, each["score"], each.get("standard_error"), each.get("examples"), row=row))
            cut.setdefault(_cut(datasets), []).append(columns[run].name)
        wanted = dict(sorted(wanted.items(), key=lambda item: ([*order, item[1].task].index(item[1].task), item[0])))
        caption = f"SCROLLS, {split} split, 0 to 100; higher is better"
        made = Scores(caption, "task", scores, tables.heads(columns, list(found)), places=2, unlike=UNLIKE)
        parts += made.table(tables.beside(wanted, places=2))
        parts += [Note(f"Prompts that were cut, {', '.join(names)}: {said}.") for said, names in cut.items() if said]
    return Section("SCROLLS", parts) if parts else None


def _cut(datasets: Mapping[str, Any]) -> str:
    """What was cut of prompts that were too long."""
    return "; ".join(
        f"{name} {each['cut_examples']:,} of {each['examples']:,} ({each.get('cut_tokens', 0):,} tokens)"
        for name, each in datasets.items()
        if each.get("cut_examples") and "examples" in each
    )


def harness(columns: Sequence[Column]) -> Section | None:
    """A row for each task or group, metric and number of shots; groups first, their members folded."""
    scores: dict[bool, list[Score]] = {False: [], True: []}
    wanted: dict[str, published.Quantity] = {}
    notes: list[Note] = []
    found = {run: result.figures for run, column in enumerate(columns) if (result := column.result("harness"))}
    groups = [group for figures in found.values() for group in (figures.get("groups") or {}).values()]
    members = {name for group in groups for name in group.get("tasks") or []}
    for run, figures in found.items():
        for name, each in [*(figures.get("groups") or {}).items(), *figures["tasks"].items()]:
            metric, shots = str(each.get("metric")), str(each.get("shots"))
            row = ", ".join([name, metric] + ([] if shots == "None" else [f"{shots} shots"]))
            # published ones were made without shots
            shown = metric if shots in ("0", "None") else f"{metric}, {shots} shots"
            task = name.removeprefix("tape_")
            wanted[row] = published.Quantity(task, "accuracy" if shown in ACCURACIES else shown)
            error = None if each.get("standard_error") is None else 100 * each["standard_error"]
            scores[name in members].append(Score(run, 100 * each["value"], error, each.get("samples"), row=row))
        cut = figures.get("cut") or {}
        if cut.get("requests"):
            said = f"{columns[run].name}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens."
            notes.append(Note(said, loud=True))
    parts: list[Part] = []
    for folded, own in scores.items():
        if own:
            caption = "Members of groups, %" if folded else "Tasks of the harness, %; standard errors behind ±"
            made = Scores(caption, "task", own, tables.heads(columns, list(found)), places=2, unlike=UNLIKE)
            parts += made.table(tables.beside({each.row: wanted[each.row] for each in own}, places=2), folded=folded)
    return Section("MMLU, ARC and other tasks", [*parts, *notes]) if parts else None
