"""One HTML page that compares stored results: charts by matplotlib, tables of scores, settings and costs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tape_ds.numbers import length
from tape_ds.results import UNTOUCHED, UNTRAINED, passkeys_of
from tape_ds.scoring import ruler
from tape_ds.scoring.report_answer import answers, is_base, native_length
from tape_ds.scoring.report_columns import RUN, Column, Unused, select
from tape_ds.scoring.report_facts import facts
from tape_ds.scoring.report_parts import HTML, NATS, PERCENT, Gallery, Score, compare, lines_of
from tape_ds.scoring.span_losses import SpanLosses

POINTS = 500
"""Most steps of a training loss in a chart."""
SCORING = (
    "join",
    "min_tokens",
    "max_tokens",
    "max_documents",
    "split",
    "bos",
    "first_window",
    "drop_last",
)
"""Options of the perplexity command that change which tokens are read and scored."""
DASH = "A dash is a missing number."
"""Every page has this sentence, by which :func:`is_page` knows it."""


def page(columns: Sequence[Column], unused: Sequence[Unused], title: str | None = None) -> str:
    """Return the page as HTML: the answer, the pictures, and a section for each topic that has results."""
    gallery = Gallery(column.name for column in columns)
    tables = {
        "Training loss": training(columns, gallery),
        "Loss by position": losses(columns, gallery),
        "RULER": rulers(columns, gallery),
        "Perplexity by length": perplexities(columns, gallery),
        "Passkeys found": passkeys(columns, gallery),
        "MMLU, ARC and other tasks": harness(columns),
        "What was run": facts(columns, unused),
    }
    pictures = [HTML.pictures(gallery.pictures)] if gallery.pictures else []
    sections = {"Usable length": answers(columns), "Pictures": pictures, **tables}
    if len(columns) > 1:
        usual = f"Comparison of {len(columns)} runs"
    else:
        usual = f"Results of {columns[0].name}"
    files = sum(len(column.records) for column in columns)
    intro = f"Runs or models: {len(columns)}; stored results: {files}. {DASH}"
    shown = {name: parts for name, parts in sections.items() if parts}
    return str(HTML.page(title or usual, intro, shown)).strip() + "\n"


def is_page(file: Path) -> bool:
    """Return whether :func:`page` made a file, in this version or an earlier one."""
    return DASH in file.read_text(encoding="utf-8", errors="replace")


def training(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw the training losses as they were logged, and return a table."""
    lines = {}
    scores = []
    for name, result in select(columns, RUN).items():
        if logged := result.figures["train_loss"]:
            lines[name] = {
                each["step"]: each["loss"] for each in logged[:: math.ceil(len(logged) / POINTS)]
            }
            scores += [
                Score(name, row, logged[place]["loss"])
                for row, place in (("first step", 0), ("last step", -1))
            ]
    if not scores:
        return []
    gallery.draw("Training loss", "optimizer step", NATS, lines)
    return compare(f"Training loss ({NATS})", scores, places=3)


def losses(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw the loss by position of each set of documents, and its differences; return the tables."""
    found: dict[str, tuple[int, list[Score]]] = {}
    for column in columns:
        for kind, record in column.records.items():
            every = record.result.figures.get("loss_by_position") or {}
            stored = {name: documents for name, documents in every.items() if documents}
            for name, documents in stored.items():
                merged = SpanLosses.merge(map(SpanLosses.from_dict, documents.values()))
                source = "held out from training" if kind == RUN else name
                title = f"{source}: {', '.join(sorted(documents))}, spans of {merged.span:,} tokens"
                # a run scores its trained model last
                label = (
                    f"{column.name}: {name}"
                    if kind == RUN and name != list(stored)[-1]
                    else column.name
                )
                scores = found.setdefault(title, (merged.span, []))[1]
                scores.append(Score(label, "mean", merged.mean))
                for start, nll, count in zip(merged.starts, merged.nll, merged.counts, strict=True):
                    scores.append(Score(label, f"from {length(start)}", nll, None, count, start))
    lengths = {native_length(column) for column in columns}
    native = lengths.pop() if len(lengths) == 1 else None
    parts = []
    for title, (span, scores) in found.items():
        # a span's loss in its middle
        lines = lines_of(scores, span / 2)
        words = f"Loss by position, {title}"
        gallery.draw(words, "position (tokens)", NATS, lines, native=native)
        gallery.draw_differences(
            words, "position (tokens)", NATS, lines, reference(columns, lines), native=native
        )
        parts += compare(f"Loss by position ({NATS}), {title}", scores, places=3, lowest=True)
    return parts


def reference(columns: Sequence[Column], lines: Mapping[str, object]) -> str | None:
    """Return the line that others are compared with: a scaled model that nothing was trained of, or else the untouched
    base; None: neither is among them."""
    untrained = [name for name in lines if name.endswith(UNTRAINED)]
    bases = [name for name in lines if name.endswith(f": {UNTOUCHED}")]
    for column in columns:
        if column.name not in lines:
            continue
        if is_base(column):
            bases.append(column.name)
        elif RUN in column.records and not column.records[RUN].result.figures.get("trained", True):
            untrained.append(column.name)
    return next(iter([*untrained, *bases]), None)


def perplexities(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw perplexity for each text and way of scoring; return the tables, and the share of tokens that were
    predicted."""
    # column, how it was scored, figures
    stored: list[tuple[str, str, Mapping[str, Any]]] = []
    for name, result in select(columns, "perplexity").items():
        options = {
            option: value
            for option in SCORING
            if (value := result.config.get(option)) not in (None, False)
        }
        typed = [
            f"--{option}" if value is True else f"--{option} {value}"
            for option, value in options.items()
        ]
        for each in result.figures["perplexity"]:
            stride = ""
            if each.get("stride") and each["convention"] != "blocks":
                stride = f"stride {each['stride']:,}"
            data = result.data.get(each["source"], "unknown")[:8]
            words = [each["source"], each["convention"], stride, *typed, f"data {data}"]
            stored.append((name, ", ".join(filter(None, words)), each))
    for name, result in select(columns, RUN).items():
        sources = result.config.get("eval_data") or []
        data = "".join(result.data.get(source, "unknown")[:8] for source in sources)
        for each in (result.figures.get("perplexity") or {}).values():
            stored.append(
                (name, f"{', '.join(sources)}, blocks, by the run itself, data {data}", each)
            )

    found: dict[str, list[Score]] = {}
    right: dict[str, list[Score]] = {}
    for name, scoring, each in stored:
        value = float(each["perplexity"])
        error = each.get("standard_error")
        row = length(each["length"])
        # stored is the error of the logarithm
        error = error and value * error
        short = (each.get("left_out") or {}).get("documents")
        detail = f"{short:,} documents too short" if short else ""
        score = Score(name, row, value, error, each.get("targets"), each["length"], detail)
        found.setdefault(scoring, []).append(score)
        if "accuracy" in each:
            share = score._replace(value=100 * each["accuracy"], error=None, detail="")
            right.setdefault(scoring, []).append(share)
    parts = []
    for scoring, scores in sorted(found.items()):
        lines = lines_of(scores)
        title = f"Perplexity: {scoring}"
        gallery.draw(title, "length (tokens)", "perplexity", lines, log=True)
        of_nats = {name: {x: _nats(y) for x, y in points.items()} for name, points in lines.items()}
        gallery.draw_differences(
            title, "length (tokens)", NATS, of_nats, reference(columns, lines), log=True
        )
        parts += compare(
            f"Perplexity, ± standard error over documents: {scoring}", scores, lowest=True
        )
        if scoring in right:
            parts += compare(f"Most likely token right, %: {scoring}", right[scoring], places=2)
    return parts


def _nats(perplexity: float) -> float:
    if perplexity > 0:
        return math.log(perplexity)
    return math.nan


def rulers(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw the means of RULER's tasks by length, and return them and each task's; questions of another kind, such as
    those of other tasks, share no table."""
    means: dict[str, list[Score]] = {}
    tasks: dict[str, list[Score]] = {}

    def add(asked: str, name: str, figures: Mapping[str, Any]) -> None:
        for each in figures["lengths"]:
            interval = f"{100 * each['low']:.0f} to {100 * each['high']:.0f}"
            score = Score(
                name,
                length(each["length"]),
                100 * each["mean"],
                tokens=each["length"],
                detail=interval,
            )
            means.setdefault(asked, []).append(score)
        for cell in figures["cells"]:
            interval = f"{100 * cell['low']:.0f} to {100 * cell['high']:.0f}"
            row = f"{cell['task']}, {length(cell['length'])}"
            score = Score(name, row, 100 * cell["score"], samples=cell["samples"], detail=interval)
            tasks.setdefault(asked, []).append(score)

    for name, result in select(columns, "ruler").items():
        chosen = ", ".join(dict.fromkeys(cell["task"] for cell in result.figures["cells"]))
        form = "chat" if result.config.get("chat") else "base"
        samples = result.config.get("samples")
        asked = f"{chosen}; {samples} questions of each, {form} form, essays from {result.figures['haystack']}"
        add(asked, name, result.figures)
    for name, result in select(columns, RUN).items():
        rows = result.figures.get("ruler") or []
        variants = list(dict.fromkeys(row["variant"] for row in rows))
        for variant in variants:
            own = [row for row in rows if row["variant"] == variant]
            chosen = ", ".join(dict.fromkeys(row["task"] for row in own))
            asked = f"{chosen}; {own[0]['samples']} questions of each, asked by the training runs themselves"
            label = name if variant == variants[-1] else f"{name}: {variant}"
            add(asked, label, ruler.figures(ruler.replies_of(own), seed=result.seed or 0))

    parts = []
    for asked, scores in means.items():
        gallery.draw(
            f"RULER, mean of {asked}", "length (tokens)", PERCENT, lines_of(scores), log=True
        )
        parts += compare(f"RULER, mean of the tasks, % (95 % interval): {asked}", scores, places=1)
        parts += compare(f"RULER by task, % (95 % interval): {asked}", tasks[asked], places=1)
    return parts


def passkeys(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw the passkeys found for each form of prompt, and return tables; the map of depths is the evaluation's own
    picture."""
    found: dict[str, dict[str, Sequence[Mapping[str, Any]]]] = {}
    for name, result in select(columns, "passkey").items():
        protocol = ""
        if result.config.get("protocol") == "published":
            protocol = "published prompts, "
        found.setdefault(f"{protocol}form {result.figures.get('form')}", {})[name] = result.figures[
            "cells"
        ]
    for name, result in select(columns, RUN).items():
        form = f"form {result.config.get('passkey_form')}, asked by the training runs themselves"
        stored = result.figures.get("passkey") or []
        variants = list(dict.fromkeys(row.get("variant") for row in stored))
        for variant in variants:
            label = name if variant == variants[-1] else f"{name}: {variant}"
            found.setdefault(form, {})[label] = passkeys_of(stored, variant)
    parts = []
    for form, by_column in sorted(found.items()):
        scores = []
        for name, cells in by_column.items():
            for tokens in sorted({cell["length"] for cell in cells if cell["trials"]}):
                counts = [
                    (cell["correct"], cell["trials"]) for cell in cells if cell["length"] == tokens
                ]
                correct, trials = map(sum, zip(*counts, strict=True))
                share = 100 * correct / trials
                detail = f"{correct}/{trials}"
                scores.append(Score(name, length(tokens), share, None, trials, tokens, detail))
        gallery.draw(
            f"Passkeys found: {form}", "length (tokens)", PERCENT, lines_of(scores), log=True
        )
        parts += compare(f"Passkeys found, % (found/asked), all depths: {form}", scores, places=0)
    return parts


def harness(columns: Sequence[Column]) -> list[Markup]:
    """Return a row for each group, task, metric and number of shots."""
    scores = []
    warnings = []
    for name, result in select(columns, "harness").items():
        for task, each in [
            *(result.figures.get("groups") or {}).items(),
            *result.figures["tasks"].items(),
        ]:
            if each.get("shots") is None:
                shots = ""
            else:
                shots = f", {each['shots']} shots"
            value, error = (each[key] and 100 * each[key] for key in ("value", "standard_error"))
            row = f"{task}, {each.get('metric') or 'no number'}{shots}"
            scores.append(Score(name, row, value, error, each.get("samples")))
        if (cut := result.figures.get("cut") or {}).get("requests"):
            warnings.append(
                HTML.warning(
                    f"{name}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens."
                )
            )
    table = compare("Tasks of lm-eval, %, ± standard error", scores, places=2) if scores else []
    return table + warnings
