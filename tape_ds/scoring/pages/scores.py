"""Sections of scores: losses, perplexities, passkeys and tasks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from tape_ds.numbers import length
from tape_ds.results import passkeys_of
from tape_ds.scoring.pages import html
from tape_ds.scoring.pages.charts import chart
from tape_ds.scoring.pages.columns import RUN, Column, select
from tape_ds.scoring.span_losses import SpanLosses

NATS = "nats per token"
POINTS = 500
"""Most steps of a training loss in a chart."""
SCORING = ("join", "min_tokens", "max_tokens", "max_documents", "split", "bos", "first_window", "drop_last")
"""Options of the perplexity command that change which tokens are read and scored."""


class Score(NamedTuple):
    column: int
    row: str
    value: float | None
    error: float | None = None
    """Standard error."""
    samples: int | None = None
    """How many it is a mean over."""
    tokens: int = -1
    """Length or position, which orders the rows."""
    detail: str = ""


Names = Mapping[int, str]
"""Of columns, by number."""


def compare(
    caption: str, scores: Sequence[Score], names: Names, *, places: int | None = None, lowest: bool = False
) -> list[Markup]:
    """Return a table of scores, the lowest of a row in bold if ``lowest``, and a warning if a row has means over
    different numbers of samples. ``places``: decimals of scores without a standard error."""
    columns = list(dict.fromkeys(each.column for each in scores))
    found: dict[str, dict[int, Score]] = {}
    for each in sorted(scores, key=lambda score: score.tokens):
        found.setdefault(each.row, {})[each.column] = each
    rows, unequal = [], []
    for row, own in found.items():
        finite = {each.value for each in own.values() if each.value is not None and math.isfinite(each.value)}
        differ = len({each.samples for each in own.values()}) > 1
        unequal += [row] if differ else []
        cells = []
        for score in (own.get(column, Score(column, row, None)) for column in columns):
            count = f"n = {score.samples:,}" if differ and score.samples else ""
            details = ", ".join(filter(None, [score.detail, count]))
            cell = html.number(score.value, score.error, places) + (f" ({details})" if details else "")
            best = lowest and len(finite) > 1 and score.value == min(finite)
            cells.append(Markup("<b>{}</b>").format(cell) if best else cell)
        rows.append([row, *cells])
    unlike = [html.warning(f"Not over equally many samples (n): {', '.join(unequal)}.")] if unequal else []
    caption += "; lowest in bold" if lowest else ""
    return [html.table(caption, ["", *(html.keyed(names[at], at) for at in columns)], rows), *unlike]


def _lines(scores: Sequence[Score], names: Names, shift: float = 0) -> dict[tuple[int, str], dict[float, float]]:
    lines: dict[tuple[int, str], dict[float, float]] = {}
    for each in sorted(scores, key=lambda score: score.tokens):
        if each.tokens >= 0 and each.value is not None:
            lines.setdefault((each.column, names[each.column]), {})[each.tokens + shift] = each.value
    return lines


def training(columns: Sequence[Column], names: Names) -> list[Markup]:
    """Return the training losses as they were logged."""
    lines, scores = {}, []
    for at, result in select(columns, RUN).items():
        if logged := result.figures["train_loss"]:
            lines[at, names[at]] = {each["step"]: each["loss"] for each in logged[:: math.ceil(len(logged) / POINTS)]}
            scores += [Score(at, row, logged[place]["loss"]) for row, place in (("first step", 0), ("last step", -1))]
    if not scores:
        return []
    drawn = chart("Training loss", "optimizer step", NATS, lines)
    return [drawn, *compare(f"Training loss ({NATS})", scores, names, places=3)]


def losses(columns: Sequence[Column], names: Names) -> list[Markup]:
    """Return the loss by position, a chart and a table for each set of documents."""
    found: dict[tuple[Any, ...], list[tuple[bool, int, str, Mapping[str, Any]]]] = {}
    for at, column in enumerate(columns):
        for kind, record in column.records.items():
            every = record.result.figures.get("loss_by_position") or {}
            stored = {name: documents for name, documents in every.items() if documents}
            for name, documents in stored.items():
                first, *others = sorted(documents)
                source = "held out from training" if kind == RUN else name
                same = found.setdefault((source, documents[first]["span"], first, *others), [])
                aside = kind == RUN and name != list(stored)[-1]  # a run scores its trained model last
                if not any(aside and documents == other for *_, other in same):  # each run scores the untouched base
                    same.append((aside, at, f"{names[at]}: {name}" if aside else names[at], documents))
    parts = []
    natives = {result.figures.get("native_length") for result in select(columns, RUN).values()}
    native = natives.pop() if len(natives) == 1 else None
    for (source, span, first, *others), each in found.items():
        some = ", ".join([first, *others] if len(others) < 3 else [first, f"{len(others)} other documents"])
        text = f"{source}: {some}, spans of {span:,} tokens"
        called: dict[int, str] = {}
        scores = []
        for aside, at, label, documents in sorted(each, key=lambda one: one[0]):
            number = max([len(names), *(known + 1 for known in called)]) if aside else at
            called[number] = label
            merged = SpanLosses.merge(map(SpanLosses.from_dict, documents.values()))
            scores.append(Score(number, "mean", merged.mean))
            for start, nll, count in zip(merged.starts, merged.nll, merged.counts, strict=True):
                scores.append(Score(number, f"from {length(start)}", nll, None, count, start))
        lines = _lines(scores, called, span / 2)  # a span's loss in its middle
        parts.append(chart(f"Loss by position, {text}", "position (tokens)", NATS, lines, native_length=native))
        parts += compare(f"Loss by position ({NATS}), {text}", scores, called, places=3, lowest=True)
    return parts


def perplexities(columns: Sequence[Column], names: Names) -> list[Markup]:
    """Return a chart and a table for each text and way of scoring, and the share of tokens that were predicted."""
    found: dict[str, list[Score]] = {}
    right: dict[str, list[Score]] = {}
    for at, column in enumerate(columns):
        for scoring, each in _perplexities_of(column):
            value, error, row = float(each["perplexity"]), each.get("standard_error"), length(each["length"])
            error = error and value * error  # stored is the error of the logarithm
            short = (each.get("left_out") or {}).get("documents")
            detail = f"{short:,} documents too short" if short else ""
            score = Score(at, row, value, error, each.get("targets"), each["length"], detail)
            found.setdefault(scoring, []).append(score)
            if "accuracy" in each:
                share = score._replace(value=100 * each["accuracy"], error=None, detail="")
                right.setdefault(scoring, []).append(share)
    parts = []
    for scoring, scores in sorted(found.items()):
        lines = _lines(scores, names)
        parts.append(chart(f"Perplexity: {scoring}", "length (tokens)", "perplexity", lines, log=True))
        parts += compare(f"Perplexity, ± standard error over documents: {scoring}", scores, names, lowest=True)
        if scoring in right:
            parts += compare(f"Most likely token right, %: {scoring}", right[scoring], names, places=2)
    return parts


def _perplexities_of(column: Column) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a description of how each perplexity was scored, and its figures."""
    for result in select([column], "perplexity").values():
        options = {name: value for name in SCORING if (value := result.config.get(name)) not in (None, False)}
        typed = [f"--{name}" if value is True else f"--{name} {value}" for name, value in options.items()]
        for each in result.figures["perplexity"]:
            stride = f"stride {each['stride']:,}" if each.get("stride") and each["convention"] != "blocks" else ""
            data = result.data.get(each["source"], "unknown")[:8]
            words = [each["source"], each["convention"], stride, *typed, f"data {data}"]
            yield ", ".join(filter(None, words)), each
    for result in select([column], RUN).values():
        sources = result.config.get("eval_data") or []
        data = "".join(result.data.get(source, "unknown")[:8] for source in sources)
        for each in (result.figures.get("perplexity") or {}).values():
            yield f"{', '.join(sources)}, blocks, by the run itself, data {data}", each


def passkeys(columns: Sequence[Column], names: Names) -> list[Markup]:
    """Return for each form of prompt the shares by length, and a map of depth and length for each column."""
    found: dict[str, dict[int, Sequence[Mapping[str, Any]]]] = {}
    for at, result in select(columns, "passkey").items():
        protocol = "published prompts, " if result.config.get("protocol") == "published" else ""
        found.setdefault(f"{protocol}form {result.figures.get('form')}", {})[at] = result.figures["cells"]
    for at, result in select(columns, RUN).items():
        form = f"form {result.config.get('passkey_form')}, asked by the training runs themselves"
        if rows := result.figures.get("passkey"):
            found.setdefault(form, {})[at] = passkeys_of(rows)
    parts = []
    for form, cells in sorted(found.items()):
        scores = []
        for at, own in cells.items():
            for tokens in sorted({cell["length"] for cell in own if cell["trials"]}):
                counts = [(cell["correct"], cell["trials"]) for cell in own if cell["length"] == tokens]
                correct, trials = map(sum, zip(*counts, strict=True))
                detail = f"{correct}/{trials}"
                scores.append(Score(at, length(tokens), 100 * correct / trials, None, trials, tokens, detail))
        parts += compare(f"Passkeys found, % (found/asked), all depths: {form}", scores, names, places=0)
        for at, own in cells.items():
            if own[0].get("depth") is None:
                continue
            lengths, depths = (sorted({cell[name] for cell in own}) for name in ("length", "depth"))
            found_at: dict[Any, Markup] = {}
            for cell in own:
                if cell["trials"]:  # on a ground that shows the share
                    filled = Markup('<span style="--share: {}">{}/{}</span>')
                    counts = (cell["correct"] / cell["trials"], cell["correct"], cell["trials"])
                    found_at[cell["depth"], cell["length"]] = filled.format(*counts)
            rows = [
                [f"{100 * depth:.4g} %", *(found_at.get((depth, each), html.MISSING) for each in lengths)]
                for depth in depths
            ]
            caption = f"Passkeys found/asked by depth and length: {names[at]}, {form}"
            parts.append(html.table(caption, ["depth", *map(length, lengths)], rows))
    return parts


def harness(columns: Sequence[Column], names: Names) -> list[Markup]:
    """Return a row for each group, task, metric and number of shots."""
    scores, warnings = [], []
    for at, result in select(columns, "harness").items():
        for name, each in [*(result.figures.get("groups") or {}).items(), *result.figures["tasks"].items()]:
            shots = "" if each.get("shots") is None else f", {each['shots']} shots"
            value, error = (each[key] and 100 * each[key] for key in ("value", "standard_error"))
            row = f"{name}, {each.get('metric') or 'no number'}{shots}"
            scores.append(Score(at, row, value, error, each.get("samples")))
        if (cut := result.figures.get("cut") or {}).get("requests"):
            text = f"{names[at]}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens."
            warnings.append(html.warning(text))
    table = compare("Tasks of lm-eval, %, ± standard error", scores, names, places=2) if scores else []
    return table + warnings
