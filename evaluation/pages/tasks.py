"""Sections of tasks: SCROLLS, and the harness's tasks with their standard errors."""

from collections.abc import Sequence

from evaluation.pages.columns import Column, names, of
from evaluation.pages.parts import Note, PageSection, Part
from evaluation.pages.tables import METRICS, Score, Scores

UNLIKE = "Not the same number of samples (n): {rows}."


def scrolls(columns: Sequence[Column]) -> PageSection | None:
    """Return a row for each data set, a table for each split."""
    parts: list[Part] = []
    stored = of(columns, "scrolls")
    for split in sorted({str(result.figures.get("split")) for result in stored.values()}):
        scores, notes = [], []
        found = {
            run: each.figures["datasets"] for run, each in stored.items() if str(each.figures.get("split")) == split
        }
        for run, datasets in found.items():
            cut = []
            for name, each in datasets.items():
                row = f"{name}, {METRICS.get(each['metric'], each['metric'])}"
                scores.append(Score(run, each["score"], each.get("standard_error"), each.get("examples"), row=row))
                if each.get("cut_examples"):
                    share = f"{each['cut_examples']:,} of {each['examples']:,} ({each.get('cut_tokens', 0):,} tokens)"
                    cut.append(f"{name} {share}")
            notes += [Note(f"{columns[run].name}: prompts that were cut: {'; '.join(cut)}.")] if cut else []
        title = f"SCROLLS, {split} split, 0 to 100; higher is better"
        parts += Scores(title, "task", scores, names(columns), places=2, unlike=UNLIKE).table()
        parts += notes
    return PageSection("SCROLLS", parts) if parts else None


def harness(columns: Sequence[Column]) -> PageSection | None:
    """Return a row for each task or group, metric and number of shots; groups first, their members folded."""
    scores: dict[bool, list[Score]] = {False: [], True: []}
    notes: list[Part] = []
    found = {run: result.figures for run, result in of(columns, "harness").items()}
    groups = {run: figures.get("groups") or {} for run, figures in found.items()}
    members = {name for each in groups.values() for group in each.values() for name in group.get("tasks") or []}
    for run, figures in found.items():
        for name, each in [*groups[run].items(), *figures["tasks"].items()]:
            metric, shots = each.get("metric") or "no number", each.get("shots")
            row = f"{name}, {metric}" + ("" if shots is None else f", {shots} shots")
            value, error = each.get("value"), each.get("standard_error")
            percent = Score(run, value and 100 * value, error and 100 * error, each.get("samples"), row=row)
            scores[name in members].append(percent)
        cut = figures.get("cut") or {}
        if cut.get("requests"):
            warning = f"{columns[run].name}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens."
            notes.append(Note(warning, loud=True))
    parts: list[Part] = []
    for folded, own in scores.items():
        if own:
            title = "Members of groups, %" if folded else "Tasks of the harness, %; standard errors behind ±"
            parts += Scores(title, "task", own, names(columns), places=2, unlike=UNLIKE).table(folded=folded)
    return PageSection("MMLU, ARC and other tasks", [*parts, *notes]) if parts else None
