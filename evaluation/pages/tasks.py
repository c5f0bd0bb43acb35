"""Sections of tasks: SCROLLS, and the harness's tasks with their standard errors; published scores beside them."""

from collections.abc import Sequence

from evaluation import published
from evaluation.pages.columns import Column, names, of
from evaluation.pages.parts import Note, Part, Section
from evaluation.pages.tables import METRICS, Score, Scores

UNLIKE = "Not the same number of samples (n): {rows}."


def scrolls(columns: Sequence[Column]) -> Section | None:
    """A row for each data set, a table for each split."""
    parts: list[Part] = []
    stored = of(columns, "scrolls")
    order = [quantity.task for quantity in published.find("Table 1").quantities]
    for split in sorted({str(result.figures.get("split")) for result in stored.values()}):
        scores, wanted, notes = [], {}, []
        found = {
            run: each.figures["datasets"] for run, each in stored.items() if str(each.figures.get("split")) == split
        }
        for run, datasets in found.items():
            cut = []
            for name, each in datasets.items():
                row = f"{name}, {METRICS.get(each['metric'], each['metric'])}"
                wanted[row] = published.Quantity(name, each["metric"])
                scores.append(Score(run, each["score"], each.get("standard_error"), each.get("examples"), row=row))
                if each.get("cut_examples"):
                    share = f"{each['cut_examples']:,} of {each['examples']:,} ({each.get('cut_tokens', 0):,} tokens)"
                    cut.append(f"{name} {share}")
            notes += [Note(f"{columns[run].name}: prompts that were cut: {'; '.join(cut)}.")] if cut else []
        wanted = dict(sorted(wanted.items(), key=lambda item: ([*order, item[1].task].index(item[1].task), item[0])))
        title = f"SCROLLS, {split} split, 0 to 100; higher is better"
        parts += Scores(title, "task", scores, names(columns), places=2, unlike=UNLIKE).table(wanted)
        parts += notes
    return Section("SCROLLS", parts) if parts else None


def harness(columns: Sequence[Column]) -> Section | None:
    """A row for each task or group, metric and number of shots; groups first, their members folded."""
    scores: dict[bool, list[Score]] = {False: [], True: []}
    wanted: dict[str, published.Quantity] = {}
    notes: list[Part] = []
    found = {run: result.figures for run, result in of(columns, "harness").items()}
    groups = {run: figures.get("groups") or {} for run, figures in found.items()}
    members = {name for each in groups.values() for group in each.values() for name in group.get("tasks") or []}
    for run, figures in found.items():
        for name, each in [*groups[run].items(), *figures["tasks"].items()]:
            metric, shots = str(each.get("metric")), each.get("shots")
            row = f"{name}, {metric}" + ("" if shots is None else f", {shots} shots")
            # the published accuracies were made without shots
            accuracy = metric in ("acc", "acc_norm") and shots in (0, None)
            wanted[row] = published.Quantity(name.removeprefix("tape_"), "accuracy" if accuracy else row)
            error = None if each.get("standard_error") is None else 100 * each["standard_error"]
            scores[name in members].append(Score(run, 100 * each["value"], error, each.get("samples"), row=row))
        cut = figures.get("cut") or {}
        if cut.get("requests"):
            warning = f"{columns[run].name}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens."
            notes.append(Note(warning, loud=True))
    parts: list[Part] = []
    for folded, own in scores.items():
        if own:
            title = "Members of groups, %" if folded else "Tasks of the harness, %; standard errors behind ±"
            made = Scores(title, "task", own, names(columns), places=2, unlike=UNLIKE)
            parts += made.table({each.row: wanted[each.row] for each in own}, folded=folded)
    return Section("MMLU, ARC and other tasks", [*parts, *notes]) if parts else None
