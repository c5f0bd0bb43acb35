"""Sections of losses: as they fell in training, and at each position of long documents."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.pages import numbers
from evaluation.pages.columns import LOSSES, RUN, Column, names, of
from evaluation.pages.parts import Chart, Line, Note, PageSection, Part
from evaluation.pages.tables import Score, Scores
from tape_ds.scoring.span_losses import SpanLosses

POINTS = 120
"""Most points of a line in a chart; more are averaged."""
NATS = "nats per token"


def training(columns: Sequence[Column]) -> PageSection | None:
    """Return the loss of every step that was logged."""
    lines, scores = [], []
    runs = of(columns, RUN)
    for run, result in runs.items():
        points = np.array([(each["step"], each["loss"]) for each in result.figures["train_loss"]], dtype=float)
        if len(points):
            last = math.fsum(points[-max(1, len(points) // 10) :, 1]) / max(1, len(points) // 10)
            named = {"first": float(points[0, 1]), "mean of the last tenth": last}
            scores += [Score(run, value, row=name) for name, value in named.items()]
            thinned = [(part[-1, 0], part[:, 1].mean()) for part in np.array_split(points, min(POINTS, len(points)))]
            lines.append(Line(columns[run].name, thinned, run))
    if not lines:
        return None
    chart = Chart("Training loss", "optimizer step", NATS, lines)
    parts: list[Part] = [chart, *Scores(f"Training loss ({NATS})", "", scores, names(columns), places=3).table()]
    if len({tokens for result in runs.values() if (tokens := result.figures.get("tokens"))}) > 1:
        parts.append(Note("The runs did not train on the same number of tokens.", loud=True))
    if len({str([result.config.get(name) for name in ("model", "tokenizer")]) for result in runs.values()}) > 1:
        warning = "The runs did not start from the same model: losses per token compare only where tokens are the same."
        parts.append(Note(warning, loud=True))
    if any(len(line.points) == POINTS for line in lines):
        parts.append(Note(f"Each point of a long line is a mean over as many steps as make {POINTS} points."))
    return PageSection("Training loss", parts)


def by_position(columns: Sequence[Column]) -> PageSection | None:
    """Return a chart and a table for each set of documents that models were scored on."""
    parts: list[Part] = []
    for text, scores in groups(columns).items():
        chart = scores.chart("Loss by position", "position (tokens)", NATS, mark=native_length(columns))
        parts += [Note(f"Documents {text}."), chart]
        if len({str(column.dropna().tolist()) for _, column in scores.frame("samples").items()}) > 1:
            parts.append(Note("Not all lines are means over the same number of tokens.", loud=True))
        parts += scores.table()
    return PageSection("Loss by position", parts) if parts else None


def groups(columns: Sequence[Column]) -> dict[str, Scores]:
    """Set of documents -> the losses of what was scored on it: the runs' own models, then what they scored beside
    them, numbered behind the runs and shown once where several scored it alike."""
    called: dict[str, dict[int, str]] = {}
    scores: dict[str, list[Score]] = {}
    seen = set()
    for own in (True, False):
        for run, column in enumerate(columns):
            for kind, record in column.records.items():
                stored = {name: each for name, each in (record.result.figures.get(LOSSES) or {}).items() if each}
                for name, documents in stored.items():
                    text = f"{'held out from training' if kind == RUN else name}: {_named(documents)}"
                    variant = (text, name, record.result.config.get("model"))
                    last = kind != RUN or name == list(stored)[-1]  # a run scores what it made last
                    if last != own or (not own and variant in seen):
                        continue
                    seen.add(variant)
                    known = called.setdefault(text, {})
                    number = run if own else max([len(columns), *(before + 1 for before in known)])
                    known[number] = column.name if own else f"{column.name}: {name}"
                    scores.setdefault(text, []).extend(_scores(number, documents))
    title = f"Loss by position ({NATS}); lowest in bold"
    return {text: Scores(title, "positions", scores[text], called[text], places=3, lowest=True) for text in called}


def _named(documents: Mapping[str, Any]) -> str:
    """Return which documents, in words that differ where they differ."""
    names = sorted(documents)
    listed = ", ".join(names) if len(names) <= 3 else f"{len(names)} documents, {names[0]} to {names[-1]}"
    return f"{listed}, spans of {numbers.length(documents[names[0]]['span'])} tokens"


def _scores(run: int, stored: Mapping[str, Any]) -> list[Score]:
    """Of each span, over all documents that reach it; and their mean."""
    documents = {name: SpanLosses.from_dict(each) for name, each in stored.items()}
    merged = SpanLosses.merge(documents.values())
    scores = [Score(run, merged.mean, row="mean")]
    for at, (start, nll, count) in enumerate(zip(merged.starts, merged.nll, merged.counts, strict=True)):
        each = {name: losses.nll[at] for name, losses in documents.items() if at < len(losses.nll)}
        row = f"from {numbers.length(start)}"
        scores.append(Score(run, nll, samples=count, tokens=start, row=row, documents=each))
    return scores


def native_length(columns: Sequence[Column]) -> int | None:
    """Return the context of the model that training began from, where all runs have the same; where none was trained,
    the shortest of the plain models that were evaluated."""
    lengths = {result.figures.get("native_length") for result in of(columns, RUN).values()}
    if lengths:
        return lengths.pop() if len(lengths) == 1 else None
    models = [record.result.model or {} for column in columns for record in column.records.values()]
    plain = [model["native_length"] for model in models if model.get("kind") == "transformers"]
    return min(filter(None, plain), default=None)
