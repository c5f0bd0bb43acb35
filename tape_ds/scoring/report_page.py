"""One HTML page that compares stored results: charts by matplotlib, tables of scores, settings and costs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tape_ds.numbers import length
from tape_ds.results import UNTOUCHED, UNTRAINED, by_variant
from tape_ds.scoring import ruler
from tape_ds.scoring.report_answer import (
    answers,
    counts_by_length,
    is_base,
    native_length,
)
from tape_ds.scoring.report_columns import RUN, Column, Unused, select
from tape_ds.scoring.report_facts import facts
from tape_ds.scoring.report_parts import (
    HTML,
    NATS,
    PERCENT,
    Gallery,
    Score,
    compare,
    interval,
    lines_of,
)
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
    # drawn in the order of the page
    tables = {
        "Training loss": training(columns, gallery),
        "Loss by position": losses(columns, gallery),
        "RULER": rulers(columns, gallery),
        "Perplexity by length": perplexities(columns, gallery),
        "Passkeys found": passkeys(columns, gallery),
        "MMLU, ARC and other tasks": harness(columns),
        "What was run": facts(columns, unused),
    }
    sections = {"Usable length": answers(columns)}
    if gallery.pictures:
        sections["Pictures"] = [HTML.pictures(gallery.pictures)]
    sections |= tables
    usual = f"Results of {columns[0].name}"
    if len(columns) > 1:
        usual = f"Comparison of {len(columns)} runs"
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
        logged = result.figures["train_loss"]
        if logged:
            drawn = logged[:: math.ceil(len(logged) / POINTS)]
            lines[name] = {entry["step"]: entry["loss"] for entry in drawn}
            scores.append(Score(name, "first step", logged[0]["loss"]))
            scores.append(Score(name, "last step", logged[-1]["loss"]))
    if not scores:
        return []
    gallery.draw("Training loss", "optimizer step", NATS, lines)
    return compare(f"Training loss ({NATS})", scores, places=3)


def losses(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw the loss by position of each set of documents, and its differences; return the tables."""
    by_title: dict[str, tuple[int, list[Score]]] = {}
    for column in columns:
        for kind, record in column.records.items():
            every = record.result.figures.get("loss_by_position") or {}
            stored = {name: documents for name, documents in every.items() if documents}
            for name, documents in stored.items():
                merged = SpanLosses.merge(map(SpanLosses.from_dict, documents.values()))
                source = name
                label = column.name
                if kind == RUN:
                    source = "held out from training"
                    # a run scores its trained model last
                    label = _label(column.name, name, stored)
                title = f"{source}: {', '.join(sorted(documents))}, spans of {merged.span:,} tokens"
                scores = by_title.setdefault(title, (merged.span, []))[1]
                scores.append(Score(label, "mean", merged.mean))
                for start, nll, count in zip(merged.starts, merged.nll, merged.counts, strict=True):
                    scores.append(Score(label, f"from {length(start)}", nll, None, count, start))
    lengths = set(map(native_length, columns))
    # bases of several lengths have no line in common
    native = lengths.pop() if len(lengths) == 1 else None
    parts = []
    for title, (span, scores) in by_title.items():
        # a span's loss in its middle
        lines = lines_of(scores, span / 2)
        words = f"Loss by position, {title}"
        gallery.draw(words, "position (tokens)", NATS, lines, native=native)
        base = reference(columns, lines)
        gallery.draw_differences(words, "position (tokens)", NATS, lines, base, native=native)
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


def _label(column: str, variant: str | None, variants: Iterable[str | None]) -> str:
    """Return the name of one of the models that a run scored: the last, the run's own, has the column's."""
    if variant == list(variants)[-1]:
        return column
    return f"{column}: {variant}"


def perplexities(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw perplexity for each text and way of scoring; return the tables, and the share of tokens that were
    predicted."""
    by_scoring: defaultdict[str, list[Score]] = defaultdict(list)
    right: defaultdict[str, list[Score]] = defaultdict(list)
    for name, scoring, row in _scored_texts(columns):
        value = float(row["perplexity"])
        error = row.get("standard_error")
        # stored is the error of the logarithm
        error = error and value * error
        short = (row.get("left_out") or {}).get("documents")
        detail = f"{short:,} documents too short" if short else ""
        tokens = row["length"]
        score = Score(name, length(tokens), value, error, row.get("targets"), tokens, detail)
        by_scoring[scoring].append(score)
        if "accuracy" in row:
            share = score._replace(value=100 * row["accuracy"], error=None, detail="")
            right[scoring].append(share)
    parts = []
    for scoring, scores in sorted(by_scoring.items()):
        lines = lines_of(scores)
        title = f"Perplexity: {scoring}"
        gallery.draw(title, "length (tokens)", "perplexity", lines, log=True)
        of_nats = {}
        for name, points in lines.items():
            of_nats[name] = {tokens: _nats(value) for tokens, value in points.items()}
        base = reference(columns, lines)
        gallery.draw_differences(title, "length (tokens)", NATS, of_nats, base, log=True)
        caption = f"Perplexity, ± standard error over documents: {scoring}"
        parts += compare(caption, scores, lowest=True)
        if scoring in right:
            parts += compare(f"Most likely token right, %: {scoring}", right[scoring], places=2)
    return parts


def _nats(perplexity: float) -> float:
    if perplexity > 0:
        return math.log(perplexity)
    return math.nan


def _scored_texts(columns: Sequence[Column]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield a column's name, how a text was scored, and its figures."""
    for name, result in select(columns, "perplexity").items():
        typed = []
        for option in SCORING:
            value = result.config.get(option)
            if value is True:
                typed.append(f"--{option}")
            elif value not in (None, False):
                typed.append(f"--{option} {value}")
        for row in result.figures["perplexity"]:
            stride = ""
            # blocks follow one another
            if row.get("stride") and row["convention"] != "blocks":
                stride = f"stride {row['stride']:,}"
            data = result.data.get(row["source"], "unknown")[:8]
            words = [row["source"], row["convention"], stride, *typed, f"data {data}"]
            yield name, ", ".join(filter(None, words)), row
    for name, result in select(columns, RUN).items():
        sources = result.config.get("eval_data") or []
        data = "".join(result.data.get(source, "unknown")[:8] for source in sources)
        scoring = f"{', '.join(sources)}, blocks, by the run itself, data {data}"
        for row in (result.figures.get("perplexity") or {}).values():
            yield name, scoring, row


def rulers(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw the means of RULER's tasks by length, and return them and each task's; questions of another kind, such as
    those of other tasks, share no table."""
    means: defaultdict[str, list[Score]] = defaultdict(list)
    tasks: defaultdict[str, list[Score]] = defaultdict(list)
    for asked, name, figures in _asked(columns):
        for row in figures["lengths"]:
            tokens = row["length"]
            share = 100 * row["mean"]
            mean = Score(name, length(tokens), share, tokens=tokens, detail=interval(row))
            means[asked].append(mean)
        for cell in figures["cells"]:
            place = f"{cell['task']}, {length(cell['length'])}"
            share = 100 * cell["score"]
            score = Score(name, place, share, samples=cell["samples"], detail=interval(cell))
            tasks[asked].append(score)
    parts = []
    for asked, scores in means.items():
        title = f"RULER, mean of {asked}"
        gallery.draw(title, "length (tokens)", PERCENT, lines_of(scores), log=True)
        parts += compare(f"RULER, mean of the tasks, % (95 % interval): {asked}", scores, places=1)
        parts += compare(f"RULER by task, % (95 % interval): {asked}", tasks[asked], places=1)
    return parts


def _asked(columns: Sequence[Column]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for name, result in select(columns, "ruler").items():
        chosen = _tasks(result.figures["cells"])
        form = "chat" if result.config.get("chat") else "base"
        samples = result.config.get("samples")
        asked = f"{chosen}; {samples} questions of each, {form} form, essays from {result.figures['haystack']}"
        yield asked, name, result.figures
    for name, result in select(columns, RUN).items():
        of_variants = by_variant(result.figures.get("ruler") or [])
        for variant, rows in of_variants.items():
            asked = f"{_tasks(rows)}; {rows[0]['samples']} questions of each, asked by the training runs themselves"
            figures = ruler.figures(ruler.replies_of(rows), seed=result.seed or 0)
            yield asked, _label(name, variant, of_variants), figures


def _tasks(rows: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(row["task"] for row in rows))


def passkeys(columns: Sequence[Column], gallery: Gallery) -> list[Markup]:
    """Draw the passkeys found for each form of prompt, and return tables; the map of depths is the evaluation's own
    picture."""
    by_form: defaultdict[str, dict[str, Sequence[Mapping[str, Any]]]] = defaultdict(dict)
    for name, result in select(columns, "passkey").items():
        form = f"form {result.figures.get('form')}"
        if result.config.get("protocol") == "published":
            form = f"published prompts, {form}"
        by_form[form][name] = result.figures["cells"]
    for name, result in select(columns, RUN).items():
        form = f"form {result.config.get('passkey_form')}, asked by the training runs themselves"
        stored = result.figures.get("passkey") or []
        of_variants = by_variant(stored)
        for variant, rows in of_variants.items():
            by_form[form][_label(name, variant, of_variants)] = rows
    parts = []
    for form, by_column in sorted(by_form.items()):
        scores = []
        for name, cells in by_column.items():
            for tokens, (correct, trials) in counts_by_length(cells).items():
                share = 100 * correct / trials
                detail = f"{correct}/{trials}"
                scores.append(Score(name, length(tokens), share, None, trials, tokens, detail))
        title = f"Passkeys found: {form}"
        gallery.draw(title, "length (tokens)", PERCENT, lines_of(scores), log=True)
        parts += compare(f"Passkeys found, % (found/asked), all depths: {form}", scores, places=0)
    return parts


def harness(columns: Sequence[Column]) -> list[Markup]:
    """Return a row for each group, task, metric and number of shots."""
    scores = []
    warnings = []
    for name, result in select(columns, "harness").items():
        groups = result.figures.get("groups") or {}
        for task, row in [*groups.items(), *result.figures["tasks"].items()]:
            label = f"{task}, {row.get('metric') or 'no number'}"
            if row.get("shots") is not None:
                label += f", {row['shots']} shots"
            value = row["value"] and 100 * row["value"]
            error = row["standard_error"] and 100 * row["standard_error"]
            scores.append(Score(name, label, value, error, row.get("samples")))
        cut = result.figures.get("cut") or {}
        if cut.get("requests"):
            text = f"{name}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens."
            warnings.append(HTML.warning(text))
    if scores:
        return compare("Tasks of lm-eval, %, ± standard error", scores, places=2) + warnings
    return warnings
