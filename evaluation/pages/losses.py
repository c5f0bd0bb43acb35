"""Sections of losses: as they fell in training, and at each position of long documents."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation.pages import numbers
from evaluation.pages.columns import LOSSES, RUN, Column
from evaluation.pages.parts import Cell, Chart, Grid, Head, Line, Note, Part, Section, Table, Text
from tape_ds import results
from tape_ds.scoring.span_losses import SpanLosses

POINTS = 120
"""Most points of a line in a chart; more are averaged."""
NATS = "nats per token"


def training(columns: Sequence[Column]) -> Section | None:
    """The loss of every step that was logged."""
    lines, cells, heads = [], [], [Head("")]
    for run, column in enumerate(columns):
        result = column.result(RUN)
        if result is None or not result.figures["train_loss"]:
            continue
        points = [(float(each["step"]), float(each["loss"])) for each in result.figures["train_loss"]]
        lines.append(Line(column.name, _thinned(points), run))
        heads.append(Head(column.name, run))
        cells.append(_summary(points))
    if not lines:
        return None
    rows = [
        (name, [each[at] for each in cells]) for at, name in enumerate(("first", "mean of the last tenth", "steps"))
    ]
    alt = f"Training loss against the optimizer step for {', '.join(line.label for line in lines)}."
    chart = Chart("Training loss", "optimizer step", NATS, lines, alt)
    parts: list[Part] = [Grid([chart, *_apart(chart), Table(f"Training loss ({NATS})", heads, rows)])]
    parts += _unlike([result for column in columns if (result := column.result(RUN))])
    if any(len(line.points) == POINTS for line in lines):
        parts.append(Text(f"Each point of a long line is a mean over as many steps as make {POINTS} points."))
    return Section("Training loss", parts)


def _unlike(runs: Sequence[results.Result]) -> list[Note]:
    """Why losses of these runs may not compare."""
    notes = []
    if len({tokens for run in runs if (tokens := run.figures.get("tokens"))}) > 1:
        notes.append(Note("The runs did not train on the same number of tokens.", loud=True))
    if len({str([run.config.get(name) for name in ("model", "tokenizer")]) for run in runs}) > 1:
        said = "The runs did not start from the same model: losses per token compare only where tokens are the same."
        notes.append(Note(said, loud=True))
    return notes


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most :data:`POINTS` means over stretches of equal length."""
    if len(points) <= POINTS:
        return points
    borders = [len(points) * at // POINTS for at in range(POINTS + 1)]
    parts = [points[first:last] for first, last in itertools.pairwise(borders)]
    return [(part[-1][0], math.fsum(loss for _, loss in part) / len(part)) for part in parts]


def _summary(points: Sequence[tuple[float, float]]) -> list[Cell]:
    last = [loss for _, loss in points[-max(1, len(points) // 10) :]]
    mean = math.fsum(last) / len(last)
    return [numbers.measured(points[0][1], None, 3), numbers.measured(mean, None, 3), Cell(f"{points[-1][0]:,.0f}")]


@dataclass(frozen=True)
class _Scored:
    """One model's losses on one set of documents."""

    label: str
    run: int
    """Its column; -1 for what a run scored beside the model it made."""
    variant: str
    """What the run called it, and its base model."""
    losses: SpanLosses


def by_position(columns: Sequence[Column]) -> Section | None:
    """A chart and a table for each set of documents that models were scored on."""
    groups: dict[str, list[_Scored]] = {}
    for run, column in enumerate(columns):
        for kind in column.records:
            result = column.result(kind)
            assert result is not None
            for text, variant, documents in _scores(kind, result):
                merged = SpanLosses.merge(SpanLosses.from_dict(each) for each in documents.values())
                name, own = variant
                label = column.name if own else f"{column.name}: {name}"
                scored = _Scored(label, run if own else -1, f"{name}, {result.config.get('model')}", merged)
                groups.setdefault(f"{text}, spans of {merged.span:,}", []).append(scored)
    parts: list[Part] = []
    for text, found in groups.items():
        parts += _positions(text, _numbered(found, len(columns)), _native_length(columns))
    return Section("Loss by position", parts) if parts else None


def _scores(kind: str, result: results.Result) -> Iterator[tuple[str, tuple[str, bool], dict[str, Any]]]:
    """Text, (variant, whether it is the model itself), and the losses of each document."""
    scores = {name: documents for name, documents in (result.figures.get(LOSSES) or {}).items() if documents}
    for name, documents in scores.items():
        if kind == RUN:  # a run scores what it made last
            yield f"held out from training: {_named(documents)}", (name, name == list(scores)[-1]), documents
        else:
            yield f"{name}: {_named(documents)}", ("", True), documents


def _named(documents: dict[str, Any]) -> str:
    """Which documents, in words that differ where they differ."""
    names = sorted(documents)
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} documents, {names[0]} to {names[-1]}"


def _numbered(found: list[_Scored], runs: int) -> list[_Scored]:
    """The runs' own, then what they scored beside it, numbered behind them; what several scored alike is shown once."""
    own = [each for each in found if each.run >= 0]
    shown = {each.variant for each in own}
    others: list[_Scored] = []
    for each in found:
        if each.variant not in shown:
            shown.add(each.variant)
            others.append(replace(each, run=runs + len(others)))
    return sorted(own, key=lambda each: each.run) + others


def _native_length(columns: Sequence[Column]) -> int | None:
    """The context of the model that training began from, where all runs have the same."""
    results_found = [result for column in columns if (result := column.result(RUN))]
    lengths = {result.figures.get("native_length") for result in results_found}
    return lengths.pop() if len(lengths) == 1 else None


def _positions(text: str, found: Sequence[_Scored], native: int | None) -> list[Part]:
    """A chart, a second one of differences where lines lie on one another, and a table."""
    lines = [Line(each.label, _middles(each.losses), each.run) for each in found]
    marks = [(float(native), f"native length {numbers.length(native)}")] if native else []
    alt = f"Loss by position on {text}, for {', '.join(line.label for line in lines)}; the table below has the numbers."
    chart = Chart("Loss by position", "position (tokens)", NATS, lines, alt, x_tokens=True, marks=marks)
    longest = max((each.losses for each in found), key=lambda losses: len(losses.starts))
    rows = [
        (f"from {numbers.length(start) if start else 0}", _row([each.losses for each in found], at))
        for at, start in enumerate(longest.starts)
    ]
    means = [each.losses.mean for each in found]
    rows.append(("mean", _marked(means)))
    heads = [Head("positions"), *(Head(each.label, each.run) for each in found)]
    parts: list[Part] = [Text(f"Documents {text} tokens."), Grid([chart, *_apart(chart)])]
    if len({each.losses.counts for each in found}) > 1:
        parts.append(Note("Not all lines are means over the same number of tokens.", loud=True))
    return [*parts, Table(f"Loss by position ({NATS}); lowest in bold", heads, rows)]


def _row(losses: Sequence[SpanLosses], at: int) -> list[Cell]:
    return _marked([each.nll[at] if at < len(each.nll) else None for each in losses])


def _marked(values: Sequence[float | None]) -> list[Cell]:
    lowest = numbers.best(values, lowest=True)
    cells = [numbers.measured(value, None, 3) for value in values]
    return [replace(c, best=lowest is not None and v == lowest) for c, v in zip(cells, values, strict=True)]


def _middles(losses: SpanLosses) -> list[tuple[float, float]]:
    return [(start + losses.span / 2, nll) for start, nll in zip(losses.starts, losses.nll, strict=True)]


def _apart(chart: Chart) -> list[Chart]:
    """The same lines as differences from their median; where there are three or more over the same points."""
    lines = chart.lines
    if len(lines) < 3 or len({tuple(x for x, _ in line.points) for line in lines}) != 1:
        return []
    medians = [_median([y for _, y in points]) for points in zip(*(line.points for line in lines), strict=True)]
    shifted = [
        replace(line, points=[(x, y - median) for (x, y), median in zip(line.points, medians, strict=True)])
        for line in lines
    ]
    farthest = [max((abs(y) for _, y in line.points if math.isfinite(y)), default=0.0) for line in shifted]
    limit = 1.6 * statistics.median(farthest)  # half of the lines lie well within it
    title = "The same, less the median of the lines"
    alt = f"{chart.alt} Drawn as differences from the median; a line far off leaves the frame."
    label = f"difference ({NATS})"
    return [replace(chart, title=title, y_label=label, lines=shifted, alt=alt, y_most=max(limit, 0.01))]


def _median(losses: Sequence[float]) -> float:
    """Of what is finite; NaN where nothing is."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return statistics.median(finite) if finite else math.nan
