"""One HTML page that compares stored results: charts by matplotlib, tables of scores, settings and costs."""

import io
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from tape_ds.numbers import duration, gibibytes, length
from tape_ds.results import passkeys_of
from tape_ds.scoring.report_columns import KINDS, RUN, Column, Unused, select
from tape_ds.scoring.span_losses import SpanLosses

TEMPLATES = FileSystemLoader(Path(__file__).parent)
HTML: Any = (
    Environment(loader=TEMPLATES, autoescape=True, undefined=StrictUndefined).get_template("report_page.html").module
)
"""The template's macros: ``warning``, ``table``, ``chart`` and ``page``."""
MISSING = Markup("–")
COLOURS = ("#0072b2", "#d55e00", "#008f68", "#c0609a", "#8a7200", "#7e6bd0", "#0e8c9b", "#c4483f")
"""Colours of lines, repeated; the contrast of each is at least 3 on light and on dark paper."""
MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}
"""matplotlib's name of a marker -> its character."""
INK = "#010203"
"""Replaced by the page's colour of text."""
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
STYLE: dict[Any, Any] = dict.fromkeys(INKED, INK) | {"svg.fonttype": "none", "font.size": 11, "grid.alpha": 0.2}
STYLE |= {"axes.facecolor": "none", "figure.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False}
NATS = "nats per token"
POINTS = 500
"""Most steps of a training loss in a chart."""
SCORING = ("join", "min_tokens", "max_tokens", "max_documents", "split", "bos", "first_window", "drop_last")
"""Options of the perplexity command that change which tokens are read and scored."""
MAIN = ("model", "launcher", "method", "position_encoding", "target_length", "max_steps", "learning_rate", "window")
"""Settings that are shown even if all columns agree."""
LEFT_OUT = (
    *("evaluation", "lengths", "depths", "data", "datasets", "tasks", "spans", "deepspeed", "output_dir"),
    *("resume_from_checkpoint", "data_cache"),
)
"""Settings that choose rows of the tables, or change no number."""
MODEL = ("address", "kind", "sha256", "encoding", "native_length", "rope_parameters")
TRAINING = ("steps", "skipped_steps", "tokens", "tokens_per_second", "peak_memory_bytes")


DASH = "A dash is a missing number."
"""Every page has this sentence, by which :func:`is_page` knows it."""


class Score(NamedTuple):
    column: str
    row: str
    value: float | None
    error: float | None = None
    """Standard error."""
    samples: int | None = None
    """How many it is a mean over."""
    tokens: int = -1
    """Length or position, which orders the rows."""
    detail: str = ""


def page(columns: Sequence[Column], unused: Sequence[Unused], title: str | None = None) -> str:
    """Return the page as HTML, with a section for each topic that has results."""
    sections = {
        "Training loss": training(columns),
        "Loss by position": losses(columns),
        "Perplexity by length": perplexities(columns),
        "Passkeys found": passkeys(columns),
        "MMLU, ARC and other tasks": harness(columns),
        "What was run": facts(columns, unused),
    }
    usual = f"Comparison of {len(columns)} runs" if len(columns) > 1 else f"Results of {columns[0].name}"
    files = sum(len(column.records) for column in columns)
    intro = f"Runs or models: {len(columns)}; stored results: {files}. {DASH}"
    shown = {name: parts for name, parts in sections.items() if parts}
    return str(HTML.page(title or usual, intro, shown)).strip() + "\n"


def is_page(file: Path) -> bool:
    """Return whether :func:`page` made a file, in this version or an earlier one."""
    return DASH in file.read_text(encoding="utf-8", errors="replace")


def number(value: float | None, error: float | None = None, places: int | None = None) -> Markup:
    """Return a figure with its standard error, both rounded to the error's second digit; without an error with
    ``places`` decimals, or four significant digits. Hovering shows all digits."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return Markup(value)
    exact, ending = repr(value), ""
    if error is not None and math.isfinite(error):
        places = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 2
        exact, ending = f"{exact} ± {error!r}", f" ± {error:.{places}f}"
    if places is None and 0 < abs(value) < 1000:
        places = 3 - math.floor(math.log10(abs(value)))
    text = f"{value:,.{places or 0}f}" if abs(value) < 1e6 else f"{value:.4g}"
    return Markup('<span title="{}">{}{}</span>').format(exact, text, ending)


def compare(caption: str, scores: Sequence[Score], *, places: int | None = None, lowest: bool = False) -> list[Markup]:
    """Return a table of scores, the lowest of a row in bold if ``lowest``, and a warning if a row has means over
    different numbers of samples. ``places``: decimals of scores without a standard error."""
    columns = list(dict.fromkeys(each.column for each in scores))
    found: dict[str, dict[str, Score]] = {}
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
            cell = number(score.value, score.error, places) + (f" ({details})" if details else "")
            best = lowest and len(finite) > 1 and score.value == min(finite)
            cells.append(Markup("<b>{}</b>").format(cell) if best else cell)
        rows.append([row, *cells])
    unlike = [HTML.warning(f"Not over equally many samples (n): {', '.join(unequal)}.")] if unequal else []
    caption += "; lowest in bold" if lowest else ""
    return [HTML.table(caption, ["", *columns], rows), *unlike]


def chart(
    title: str, x_label: str, y_label: str, lines: Mapping[str, Mapping[float, float]], *, log: bool = False
) -> Markup:
    """Return a figure with its legend, as SVG in the text colour of the page.

    Args:
        title: of the figure, unlike all others of the page.
        x_label, y_label: with units; 8,192 tokens are written 8k.
        lines: name -> x -> y.
        log: x is logarithmic.
    """
    drawn = io.StringIO()
    legend = []
    with rc_context(STYLE | {"svg.hashsalt": title}):  # the same title gives the same bytes
        figure = Figure(figsize=(4.7, 3.1), layout="constrained")  # a phone shows its text as large as the page's
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        axes.grid(axis="y")
        for at, (name, points) in enumerate(lines.items()):
            colour, marker = COLOURS[at % len(COLOURS)], list(MARKERS)[at % len(MARKERS)]
            legend.append((name, colour, MARKERS[marker]))
            y = np.array([*points.values()], dtype=float)
            every = max(1, math.ceil(len(y) / 9))
            kind = "-" if at < len(COLOURS) else "--"
            marks: dict[str, Any] = {"marker": marker, "markevery": (at % every, every)}
            axes.plot([*points], np.where(np.isfinite(y), y, np.nan), color=colour, linestyle=kind, **marks)
        if log:
            axes.set_xscale("log", base=2)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 4, 8, 10]))
        if "tokens" in x_label:
            axes.xaxis.set_major_formatter(lambda x, _: length(round(x)))
        axes.xaxis.set_minor_locator(NullLocator())
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = drawn.getvalue()[drawn.getvalue().index("<svg") :]
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg).replace(INK, "currentColor").replace("<svg ", '<svg role="img" ', 1)
    made: Markup = HTML.chart(title, legend, svg)
    return made


def lines_of(scores: Sequence[Score], shift: float = 0) -> dict[str, dict[float, float]]:
    lines: dict[str, dict[float, float]] = {}
    for each in sorted(scores, key=lambda score: score.tokens):
        if each.tokens >= 0 and each.value is not None:
            lines.setdefault(each.column, {})[each.tokens + shift] = each.value
    return lines


def training(columns: Sequence[Column]) -> list[Markup]:
    """Return the training losses as they were logged."""
    lines, scores = {}, []
    for name, result in select(columns, RUN).items():
        if logged := result.figures["train_loss"]:
            lines[name] = {each["step"]: each["loss"] for each in logged[:: math.ceil(len(logged) / POINTS)]}
            scores += [Score(name, row, logged[place]["loss"]) for row, place in (("first step", 0), ("last step", -1))]
    if not scores:
        return []
    drawn = chart("Training loss", "optimizer step", NATS, lines)
    return [drawn, *compare(f"Training loss ({NATS})", scores, places=3)]


def losses(columns: Sequence[Column]) -> list[Markup]:
    """Return the loss by position, a chart and a table for each set of documents."""
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
                label = f"{column.name}: {name}" if kind == RUN and name != list(stored)[-1] else column.name
                scores = found.setdefault(title, (merged.span, []))[1]
                scores.append(Score(label, "mean", merged.mean))
                for start, nll, count in zip(merged.starts, merged.nll, merged.counts, strict=True):
                    scores.append(Score(label, f"from {length(start)}", nll, None, count, start))
    parts = []
    for title, (span, scores) in found.items():
        lines = lines_of(scores, span / 2)  # a span's loss in its middle
        parts.append(chart(f"Loss by position, {title}", "position (tokens)", NATS, lines))
        parts += compare(f"Loss by position ({NATS}), {title}", scores, places=3, lowest=True)
    return parts


def perplexities(columns: Sequence[Column]) -> list[Markup]:
    """Return a chart and a table for each text and way of scoring, and the share of tokens that were predicted."""
    stored: list[tuple[str, str, Mapping[str, Any]]] = []  # column, how it was scored, figures
    for name, result in select(columns, "perplexity").items():
        options = {option: value for option in SCORING if (value := result.config.get(option)) not in (None, False)}
        typed = [f"--{option}" if value is True else f"--{option} {value}" for option, value in options.items()]
        for each in result.figures["perplexity"]:
            stride = f"stride {each['stride']:,}" if each.get("stride") and each["convention"] != "blocks" else ""
            data = result.data.get(each["source"], "unknown")[:8]
            words = [each["source"], each["convention"], stride, *typed, f"data {data}"]
            stored.append((name, ", ".join(filter(None, words)), each))
    for name, result in select(columns, RUN).items():
        sources = result.config.get("eval_data") or []
        data = "".join(result.data.get(source, "unknown")[:8] for source in sources)
        for each in (result.figures.get("perplexity") or {}).values():
            stored.append((name, f"{', '.join(sources)}, blocks, by the run itself, data {data}", each))

    found: dict[str, list[Score]] = {}
    right: dict[str, list[Score]] = {}
    for name, scoring, each in stored:
        value, error, row = float(each["perplexity"]), each.get("standard_error"), length(each["length"])
        error = error and value * error  # stored is the error of the logarithm
        short = (each.get("left_out") or {}).get("documents")
        detail = f"{short:,} documents too short" if short else ""
        score = Score(name, row, value, error, each.get("targets"), each["length"], detail)
        found.setdefault(scoring, []).append(score)
        if "accuracy" in each:
            share = score._replace(value=100 * each["accuracy"], error=None, detail="")
            right.setdefault(scoring, []).append(share)
    parts = []
    for scoring, scores in sorted(found.items()):
        parts.append(chart(f"Perplexity: {scoring}", "length (tokens)", "perplexity", lines_of(scores), log=True))
        parts += compare(f"Perplexity, ± standard error over documents: {scoring}", scores, lowest=True)
        if scoring in right:
            parts += compare(f"Most likely token right, %: {scoring}", right[scoring], places=2)
    return parts


def passkeys(columns: Sequence[Column]) -> list[Markup]:
    """Return a chart and a table for each form of prompt; the map of depths is the evaluation's own picture."""
    found: dict[str, dict[str, Sequence[Mapping[str, Any]]]] = {}
    for name, result in select(columns, "passkey").items():
        protocol = "published prompts, " if result.config.get("protocol") == "published" else ""
        found.setdefault(f"{protocol}form {result.figures.get('form')}", {})[name] = result.figures["cells"]
    for name, result in select(columns, RUN).items():
        form = f"form {result.config.get('passkey_form')}, asked by the training runs themselves"
        if stored := result.figures.get("passkey"):
            found.setdefault(form, {})[name] = passkeys_of(stored)
    parts = []
    for form, by_column in sorted(found.items()):
        scores = []
        for name, cells in by_column.items():
            for tokens in sorted({cell["length"] for cell in cells if cell["trials"]}):
                counts = [(cell["correct"], cell["trials"]) for cell in cells if cell["length"] == tokens]
                correct, trials = map(sum, zip(*counts, strict=True))
                share, detail = 100 * correct / trials, f"{correct}/{trials}"
                scores.append(Score(name, length(tokens), share, None, trials, tokens, detail))
        parts.append(chart(f"Passkeys found: {form}", "length (tokens)", "%", lines_of(scores), log=True))
        parts += compare(f"Passkeys found, % (found/asked), all depths: {form}", scores, places=0)
    return parts


def harness(columns: Sequence[Column]) -> list[Markup]:
    """Return a row for each group, task, metric and number of shots."""
    scores, warnings = [], []
    for name, result in select(columns, "harness").items():
        for task, each in [*(result.figures.get("groups") or {}).items(), *result.figures["tasks"].items()]:
            shots = "" if each.get("shots") is None else f", {each['shots']} shots"
            value, error = (each[key] and 100 * each[key] for key in ("value", "standard_error"))
            row = f"{task}, {each.get('metric') or 'no number'}{shots}"
            scores.append(Score(name, row, value, error, each.get("samples")))
        if (cut := result.figures.get("cut") or {}).get("requests"):
            warnings.append(
                HTML.warning(f"{name}: {cut['requests']:,} requests were cut, by {cut['tokens']:,} tokens.")
            )
    table = compare("Tasks of lm-eval, %, ± standard error", scores, places=2) if scores else []
    return table + warnings


def facts(columns: Sequence[Column], unused: Sequence[Unused]) -> list[Markup]:
    """Return a table for each kind of result, with a warning if evaluations differ, and the files left out."""
    parts = []
    for kind in KINDS:
        records = {column.name: column.records[kind] for column in columns if kind in column.records}
        settings: dict[str, dict[str, Any]] = {}  # name -> column -> value
        costs: dict[str, dict[str, Any]] = {}
        for name, (path, _, result) in records.items():
            model, machine, commit = result.model or {}, result.hardware, result.commit or {}
            own = {setting: value for setting, value in result.config.items() if setting not in LEFT_OUT}
            # of DeepSpeed's configuration only the ZeRO stage: the rest decides memory and speed
            own["ZeRO stage"] = ((result.config.get("deepspeed") or {}).get("zero_optimization") or {}).get("stage")
            own |= {"seed": result.seed, "dtype": model.get("dtype"), "tokenizer": (model.get("tokenizer") or "")[:12]}
            own["lm-eval"] = result.versions.get("lm-eval") if kind == "harness" else None
            own |= {f"data {source}": digest[:12] for source, digest in result.data.items()}
            for setting, value in own.items():
                settings.setdefault(setting, {})[name] = value

            spent = datetime.fromisoformat(result.finished or "") - datetime.fromisoformat(result.started)
            gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
            names = ", ".join(f"{gpus.count(each)} x {each}" for each in dict.fromkeys(gpus))
            found = {f"model {fact}": model.get(fact) for fact in MODEL if model}
            found |= {"seconds": spent.total_seconds()} | (result.figures.get("cost") or {})
            if kind == RUN:
                found |= {fact: result.figures.get(fact) for fact in TRAINING}
            found |= {"processor": names or machine.get("cpu"), "processes": machine.get("processes")}
            found |= {"commit": (commit.get("hash") or "")[:12], "uncommitted changes": commit.get("dirty")}
            found["versions"] = ", ".join(f"{package} {version}" for package, version in result.versions.items())
            found |= {"finished": result.finished, "command": shlex.join(result.command), "file": str(path)}
            for fact, value in found.items():
                costs.setdefault(fact, {})[name] = value

        differ = []
        for setting, values in [*settings.items()]:
            is_data = setting.startswith("data ")
            # data that another column did not read is no difference: a row of scores has the same data for all columns
            compared = values.values() if is_data else [values.get(name) for name in records]
            differ += [setting] if len(set(map(repr, compared))) > 1 else []
            if not (setting in differ or setting in MAIN or is_data):
                del settings[setting]
        if unlike := [setting for setting in differ if kind != RUN or setting.startswith("data ")]:
            words = "trained on the same data" if kind == RUN else "evaluated alike"
            parts.append(HTML.warning(f"{kind}: not {words}, so numbers may not compare: {', '.join(unlike)}."))
        if records:
            rows = []
            for fact, values in [*settings.items(), *costs.items()]:
                rows.append([fact, *(with_unit(fact, values.get(name)) for name in records)])
            caption = f"Results of {kind}: main settings, others that differ, costs of the last start, and origin"
            parts.append(HTML.table(caption, [kind, *records], rows))
    left = [[str(path), reason] for path, reason in unused]
    return parts + ([HTML.table("Files that could not be used", ["file", "reason"], left)] if left else [])


def with_unit(name: str, value: Any) -> str:
    """Return a value with the unit that its name ends with."""
    if value is None or value == "" or isinstance(value, bool):
        return {None: MISSING, "": MISSING, True: "yes", False: "no"}[value]
    if not isinstance(value, int | float):
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if name.endswith("_bytes"):
        return gibibytes(value)
    if name.endswith("seconds") and value >= 60:
        return duration(value)
    return number(value) if name.endswith("second") else f"{value:,}"
