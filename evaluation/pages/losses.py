"""Sections of losses: as they fell in training, and at each position of long documents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from evaluation.pages import numbers, tables
from evaluation.pages.columns import LOSSES, RUN, Column
from evaluation.pages.parts import Chart, Head, Line, Note, Part, Section
from evaluation.pages.tables import Score, Scores
from tape_ds.scoring.span_losses import SpanLosses

POINTS = 120
"""Most points of a line in a chart; more are averaged."""
NATS = "nats per token"
FAR = 4
"""A line this many times as far from the median of the lines as half of them are would hide them."""


def training(columns: Sequence[Column]) -> Section | None:
    """The loss of every step that was logged."""
    lines, scores = [], []
    runs = [(run, result) for run, column in enumerate(columns) if (result := column.result(RUN))]
    for run, result in runs:
        points = [(float(each["step"]), float(each["loss"])) for each in result.figures["train_loss"]]
        if points:
            last = [loss for _, loss in points[-max(1, len(points) // 10) :]]
            named = {"first": points[0][1], "mean of the last tenth": math.fsum(last) / len(last)}
            scores += [Score(run, value, row=name) for name, value in named.items()]
            lines.append(Line(columns[run].name, _thinned(points), run))
    if not lines:
        return None
    heads = tables.heads(columns, [line.run for line in lines])
    chart = Chart("Training loss", "optimizer step", NATS, lines)
    parts: list[Part] = [chart, *Scores(f"Training loss ({NATS})", "", scores, heads, places=3).table()]
    if len({tokens for _, result in runs if (tokens := result.figures.get("tokens"))}) > 1:
        parts.append(Note("The runs did not train on the same number of tokens.", loud=True))
    if len({str([result.config.get(name) for name in ("model", "tokenizer")]) for _, result in runs}) > 1:
        said = "The runs did not start from the same model: losses per token compare only where tokens are the same."
        parts.append(Note(said, loud=True))
    if any(len(line.points) == POINTS for line in lines):
        parts.append(Note(f"Each point of a long line is a mean over as many steps as make {POINTS} points."))
    return Section("Training loss", parts)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most :data:`POINTS` means over stretches of equal length."""
    if len(points) <= POINTS:
        return points
    parts = np.array_split(np.asarray(points), POINTS)
    return [(float(part[-1, 0]), math.fsum(part[:, 1]) / len(part)) for part in parts]


def by_position(columns: Sequence[Column]) -> Section | None:
    """Two charts and a table for each set of documents that models were scored on."""
    parts: list[Part] = []
    for text, scores in groups(columns).items():
        chart = scores.chart("Loss by position", "position (tokens)", NATS, mark=native_length(columns))
        apart, far = _apart(chart)
        parts += [Note(f"Documents {text}."), chart, *apart]
        parts += [Note(f"Too far from the others to be drawn beside them: {', '.join(far)}.")] if far else []
        if len({str(column.dropna().tolist()) for _, column in scores.frame("samples").items()}) > 1:
            parts.append(Note("Not all lines are means over the same number of tokens.", loud=True))
        parts += scores.table()
    return Section("Loss by position", parts) if parts else None


def groups(columns: Sequence[Column]) -> dict[str, Scores]:
    """Set of documents -> the losses of what was scored on it: the runs' own models, then what they scored beside
    them, numbered behind the runs and shown once where several scored it alike."""
    own: dict[str, list[tuple[Head, list[Score]]]] = {}
    others: dict[str, dict[str, tuple[str, Mapping[str, Any]]]] = {}
    for run, column in enumerate(columns):
        for kind in column.records:
            result = column.result(kind)
            assert result is not None
            scored = {name: each for name, each in (result.figures.get(LOSSES) or {}).items() if each}
            for name, documents in scored.items():
                text = f"{'held out from training' if kind == RUN else name}: {_named(documents)}"
                text += f", spans of {numbers.length(next(iter(documents.values()))['span'])} tokens"
                own.setdefault(text, [])
                known = others.setdefault(text, {})
                variant = f"{name}, {result.config.get('model')}"
                if kind == RUN and name != list(scored)[-1]:  # a run scores what it made last
                    known.setdefault(variant, (f"{column.name}: {name}", documents))
                else:
                    known[variant] = ("", {})  # not shown a second time beside the runs' own
                    own[text].append((Head(column.name, run), _scores(run, documents)))
    found = {}
    for text, scores in own.items():
        beside = [each for each in others[text].values() if each[1]]
        numbered = enumerate(beside, len(columns))
        every = sorted(scores, key=lambda each: each[0].run or 0)
        every += [(Head(label, run), _scores(run, documents)) for run, (label, documents) in numbered]
        title = f"Loss by position ({NATS}); lowest in bold"
        flat = [score for _, each in every for score in each]
        found[text] = Scores(title, "positions", flat, [head for head, _ in every], places=3, lowest=True)
    return found


def _named(documents: Mapping[str, Any]) -> str:
    """Which documents, in words that differ where they differ."""
    names = sorted(documents)
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} documents, {names[0]} to {names[-1]}"


def _scores(run: int, stored: Mapping[str, Any]) -> list[Score]:
    """Of each span, over all documents that reach it."""
    documents = {name: SpanLosses.from_dict(each) for name, each in stored.items()}
    merged = SpanLosses.merge(documents.values())
    mean = Score(run, merged.mean, row="mean")
    return [
        Score(
            run,
            nll,
            samples=count,
            tokens=start,
            row=f"from {numbers.length(start)}",
            documents={name: each.nll[at] for name, each in documents.items() if at < len(each.nll)},
        )
        for at, (start, nll, count) in enumerate(zip(merged.starts, merged.nll, merged.counts, strict=True))
    ] + [mean]


def native_length(columns: Sequence[Column]) -> int | None:
    """The context of the model that training began from, where all runs have the same; where none was trained, the
    shortest of the plain models that were evaluated."""
    found = [result for column in columns if (result := column.result(RUN))]
    lengths = {result.figures.get("native_length") for result in found}
    if not found:
        models = [record.result.model or {} for column in columns for record in column.records.values()]
        return min(
            (m["native_length"] for m in models if m.get("kind") == "transformers" and m["native_length"]), default=None
        )
    return lengths.pop() if len(lengths) == 1 else None


def _apart(chart: Chart) -> tuple[list[Chart], list[str]]:
    """The same lines as differences from their median, where there are three or more over the same points; and the
    names of lines that lie too far off to be drawn so."""
    if len(chart.lines) < 3 or len({tuple(x for x, _ in line.points) for line in chart.lines}) != 1:
        return [], []
    frame = pd.DataFrame({line.run: dict(line.points) for line in chart.lines}).replace([math.inf, -math.inf], math.nan)
    differences = frame.sub(frame.median(axis=1), axis=0)
    farthest = differences.abs().max()
    near = [line for line in chart.lines if farthest[line.run] <= max(FAR * farthest.median(), 0.01)]
    lines = [replace(line, points=list(differences[line.run].items())) for line in near]
    title = "Above and below the median of all lines (lower is better)"
    names = [line.label for line in chart.lines if line not in near]
    return [replace(chart, title=title, y_label="difference (nats)", lines=lines)], names
