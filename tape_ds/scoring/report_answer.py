"""Answers that a reader of the report wants first: the length that a model can use, its loss past the native length,
and the loss at short lengths, each beside the untouched base.

A usable length is RULER's effective length where its questions were asked. Passkeys and losses allow less to be said,
and their rows are named after what they measure.
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from markupsafe import Markup

from tape_ds.mappings import without
from tape_ds.numbers import length
from tape_ds.results import UNTOUCHED, WITHOUT_UPDATES, Result, by_variant
from tape_ds.scoring import ruler
from tape_ds.scoring.report_columns import RUN, Column
from tape_ds.scoring.report_parts import HTML, MISSING, interval, number
from tape_ds.scoring.span_losses import SpanLosses

BASE = "untouched base"
RULES = {
    "published": f"RULER's rule ({100 * ruler.PUBLISHED_THRESHOLD:.1f} %)",
    "own": f"its own rule ({100 * ruler.OWN_SHARE:.0f} % of its score at {{}})",
}
"""``{}`` becomes the shortest length."""
Passkeys = Mapping[int, tuple[int, int]]
"""Length -> passkeys that were found, and asked for."""
T = TypeVar("T")
ByModel = dict[str, T]
"""By the heading of a model: :data:`BASE`, those between, and last the column's own."""


class Evidence(NamedTuple):
    """Measurements of the models that belong to a column."""

    own: str
    """Heading of the column's own model."""
    native: int | None
    """Tokens of the base; None: not known."""
    ruler: ByModel[Mapping[str, Any]]
    """Figures of :func:`tape_ds.scoring.ruler.figures`."""
    ruler_asked: str
    passkeys: ByModel[Passkeys]
    losses: ByModel[SpanLosses]


class AnswerRow(NamedTuple):
    label: str
    cells: ByModel[Markup]
    sentence: str


def answers(columns: Sequence[Column]) -> list[Markup]:
    """Return the cards of the columns about which something can be said, and remarks; bases that others are compared
    with have no card of their own."""
    bases = {column.name: base_of(column, columns) for column in columns}
    shown_beside = {base.name for base in bases.values() if base is not None}
    cards = []
    remarks: dict[str, None] = {}
    for column in columns:
        if column.name in shown_beside:
            continue
        evidence = evidence_of(column, bases[column.name])
        rows = [*usable(evidence), *past_native(evidence), *short(evidence)]
        if not rows:
            continue
        # the base first, the column's own model last
        names = dict.fromkeys(itertools.chain.from_iterable(row.cells for row in rows))
        heads = sorted(names, key=lambda name: (name != BASE, name == evidence.own))
        table = []
        for row in rows:
            table.append([row.label, *(row.cells.get(name, MISSING) for name in heads)])
        sentences = " ".join(filter(None, (row.sentence for row in rows)))
        cards.append(HTML.answer(column.name, sentences, ["", *heads], table))
        remarks |= dict.fromkeys(notes(evidence))
    if cards:
        return [HTML.answers(cards, list(remarks))]
    return []


def is_base(column: Column) -> bool:
    """Return whether a column holds evaluations of a model that no run of this project made."""
    models = [record.result.model or {} for record in column.records.values()]
    return any(model.get("kind") == "transformers" for model in models)


def base_of(column: Column, columns: Sequence[Column]) -> Column | None:
    """Return the column of the untouched base: the one that the run names, or the only one if no run is recorded."""
    if is_base(column):
        return None
    bases = list(filter(is_base, columns))
    run = column.result(RUN)
    if run is not None:
        bases = [base for base in bases if run.config.get("model") in _addresses(base)]
    if len(bases) == 1:
        return bases[0]
    return None


def _addresses(column: Column) -> list[str]:
    models = [record.result.model for record in column.records.values()]
    return [model["address"] for model in models if model]


def native_length(column: Column, base: Column | None = None) -> int | None:
    """Return the tokens that the base of a column's model was made for; None: not recorded."""
    run = column.result(RUN)
    if run is not None:
        return run.figures.get("native_length")
    for each in filter(None, (base, column)):
        for record in each.records.values():
            model = record.result.model or {}
            rope = model.get("rope_parameters") or {}
            # a scaled model says what it was scaled from
            tokens = rope.get("original_max_position_embeddings") or model.get("native_length")
            if tokens:
                return int(tokens)
    return None


def evidence_of(column: Column, base: Column | None) -> Evidence:
    run = column.result(RUN)
    own = column.name
    if run is not None:
        own = next(reversed(_variants(run)), own)
    asked, ruler_figures = _ruler(column, base, run, own)
    return Evidence(
        own=own,
        native=native_length(column, base),
        ruler=ruler_figures,
        ruler_asked=asked,
        passkeys=_beside_base(_evaluated_passkeys(column, base, own), _run_passkeys(run, own)),
        losses=_beside_base(_evaluated_losses(column, base, own), _run_losses(run)),
    )


def _of_base(base: Column | None, kind: str) -> Result | None:
    if base is None:
        return None
    return base.result(kind)


def _rows(run: Result | None, name: str) -> Any:
    """Return a figure of a run that may be missing or None; of no run, nothing."""
    if run is None:
        return []
    return run.figures.get(name) or []


def _beside_base(*candidates: ByModel[T]) -> ByModel[T]:
    """Return the first that has the base too, or else the first that is there at all."""
    present = list(filter(None, candidates))
    for candidate in present:
        if BASE in candidate:
            return candidate
    if present:
        return present[0]
    return {}


def _variants(run: Result) -> list[str]:
    """Return the models that a run scored, its own last; the trained one without its updates is left out."""
    names = dict.fromkeys(_rows(run, "loss_by_position"))
    for row in [*_rows(run, "passkey"), *_rows(run, "ruler")]:
        # older results are of the run's model alone, and name none
        if "variant" in row:
            names[row["variant"]] = None
    return [name for name in names if not name.endswith(WITHOUT_UPDATES)]


def _heading(variant: str) -> str:
    if variant == UNTOUCHED:
        return BASE
    return variant


def _ruler(
    column: Column, base: Column | None, run: Result | None, own: str
) -> tuple[str, ByModel[Mapping[str, Any]]]:
    """Return what was asked, in words, and the figures."""
    evaluated: ByModel[Mapping[str, Any]] = {}
    asked = ""
    result = column.result("ruler")
    if result is not None:
        count = max(row["tasks"] for row in result.figures["lengths"])
        asked = f"{count} of its {ruler.ALL_TASKS} tasks, {result.config['samples']} questions of each at each length"
        asked += f", essays from {result.figures['haystack']}"
        evaluated[own] = result.figures
        other = _of_base(base, "ruler")
        if other is not None and asked_alike(result, other):
            evaluated[BASE] = other.figures
    by_run: ByModel[Mapping[str, Any]] = {}
    rows = _rows(run, "ruler")
    seed = run.seed if run else None
    for variant, of_variant in by_variant(rows).items():
        by_run[_heading(str(variant))] = ruler.figures(ruler.replies_of(of_variant), seed=seed or 0)
    chosen = _beside_base(evaluated, by_run)
    if chosen is by_run and rows:
        tasks = ", ".join(dict.fromkeys(row["task"] for row in rows))
        asked = f"{tasks} of its {ruler.ALL_TASKS} tasks, asked by the run itself"
        asked += f", {rows[0]['samples']} questions of each at each length"
    return asked, chosen


def asked_alike(one: Result, other: Result) -> bool:
    """Return whether two evaluations by RULER asked the same questions in the same form."""

    def questions(result: Result) -> dict[str, Any]:
        # how many tokens are read at a time changes no question
        config = without(result.config, ["chunk"])
        return config | {"haystack": result.figures.get("haystack"), "seed": result.seed}

    return questions(one) == questions(other)


def _evaluated_passkeys(column: Column, base: Column | None, own: str) -> ByModel[Passkeys]:
    result = column.result("passkey")
    if result is None:
        return {}
    counts = {own: counts_by_length(result.figures["cells"])}
    other = _of_base(base, "passkey")
    if other is not None and _form(result) == _form(other):
        counts[BASE] = counts_by_length(other.figures["cells"])
    return counts


def _form(result: Result) -> tuple[str | None, str | None]:
    return result.config.get("form"), result.config.get("protocol")


def _run_passkeys(run: Result | None, own: str) -> ByModel[Passkeys]:
    stored = _rows(run, "passkey")
    if not stored:
        return {}
    # an older run asked its own model only
    if "variant" not in stored[0]:
        return {own: counts_by_length(stored)}
    counts = {}
    for variant, rows in by_variant(stored).items():
        name = str(variant)
        if not name.endswith(WITHOUT_UPDATES):
            counts[_heading(name)] = counts_by_length(rows)
    return counts


def counts_by_length(cells: Iterable[Mapping[str, Any]]) -> Passkeys:
    """Return the passkeys that were found and asked for, over all depths."""
    correct: Counter[int] = Counter()
    trials: Counter[int] = Counter()
    for cell in cells:
        correct[cell["length"]] += cell["correct"]
        trials[cell["length"]] += cell["trials"]
    # a length without a prompt says nothing
    return {tokens: (correct[tokens], trials[tokens]) for tokens in sorted(+trials)}


def _evaluated_losses(column: Column, base: Column | None, own: str) -> ByModel[SpanLosses]:
    texts = _texts(column.result("perplexity"))
    if not texts:
        return {}
    others = _texts(_of_base(base, "perplexity"))
    # texts that both scored, and at the same positions
    common = [key for key in texts if key in others and others[key].counts == texts[key].counts]
    if common:
        return {own: _merged(texts, common), BASE: _merged(others, common)}
    return {own: _merged(texts, list(texts))}


def _texts(result: Result | None) -> dict[tuple[str, str], SpanLosses]:
    texts = {}
    for source, documents in dict(_rows(result, "loss_by_position")).items():
        for name, losses in documents.items():
            texts[source, name] = SpanLosses.from_dict(losses)
    return texts


def _merged(texts: Mapping[Any, SpanLosses], chosen: Sequence[Any]) -> SpanLosses:
    """Return the mean over the texts whose spans are as long as the first's."""
    span = texts[chosen[0]].span
    return SpanLosses.merge(texts[key] for key in chosen if texts[key].span == span)


def _run_losses(run: Result | None) -> ByModel[SpanLosses]:
    merged = {}
    for variant, documents in dict(_rows(run, "loss_by_position")).items():
        if documents and not variant.endswith(WITHOUT_UPDATES):
            losses = map(SpanLosses.from_dict, documents.values())
            merged[_heading(variant)] = SpanLosses.merge(losses)
    return merged


def usable(evidence: Evidence) -> list[AnswerRow]:
    """Return the usable lengths by RULER, or else by passkeys and by the loss."""
    if evidence.ruler:
        return [_effective(evidence, rule) for rule in RULES]
    rows = []
    if evidence.passkeys:
        rows.append(_found_to(evidence))
    base = evidence.losses.get(BASE)
    if base is not None and evidence.native is not None and evidence.native <= base.starts[-1]:
        rows.append(_steady_to(evidence, base, evidence.native))
    return rows


def _text_row(label: str, texts: ByModel[str], sentence: str) -> AnswerRow:
    return AnswerRow(label, {name: Markup.escape(text) for name, text in texts.items()}, sentence)


def _effective(evidence: Evidence, rule: str) -> AnswerRow:
    shortest = next(iter(evidence.ruler.values()))["lengths"][0]["length"]
    label = f"Usable length by {RULES[rule].format(length(shortest))}"
    texts = {}
    for name, figures in evidence.ruler.items():
        effective = figures["effective"][rule]
        tokens = effective["length"]
        reached = f"below {length(shortest)}"
        if tokens is not None:
            reached = length(tokens)
        if tokens == figures["lengths"][-1]["length"]:
            reached += ", the longest asked"
        texts[name] = f"{reached} (probability {100 * effective['probability']:.0f} %)"
    sentence = ""
    if rule == "published":
        sentence = f"{label}: {_beside(texts, evidence.own)}."
    return _text_row(label, texts, sentence)


def _found_to(evidence: Evidence) -> AnswerRow:
    texts = {}
    for name, counts in evidence.passkeys.items():
        reached = None
        for tokens, (correct, trials) in counts.items():
            if correct < trials:
                break
            reached = tokens
        if reached is None:
            first = next(iter(counts))
            texts[name] = f"below {length(first)} ({counts[first][0]} of {counts[first][1]} there)"
            continue
        asked = counts[reached][1]
        place = length(reached)
        if reached == max(counts):
            place += ", the longest asked"
        texts[name] = f"{place} ({asked} of {asked} there)"
    label = "Usable length by passkeys (all found)"
    return _text_row(label, texts, f"{label}: {_beside(texts, evidence.own)}.")


def _steady_to(evidence: Evidence, base: SpanLosses, native: int) -> AnswerRow:
    """Return up to where no span past the native length has a loss above the base's mean within it."""
    level = base.mean_between(0, native)
    texts = {}
    for name, losses in evidence.losses.items():
        reached = None
        for start, nll in zip(losses.starts, losses.nll, strict=True):
            if start >= native and not nll <= level:
                reached = start
                break
        texts[name] = f"{length(losses.starts[-1] + losses.span)}, the longest scored"
        if reached is not None:
            texts[name] = length(reached)
    label = f"Usable length by loss (at most the base's mean to {length(native)}, {level:.3f})"
    sentence = ""
    # passkeys have their sentence
    if not evidence.passkeys:
        sentence = f"{label}: {_beside(texts, evidence.own)}."
    return _text_row(label, texts, sentence)


def _beside(texts: Mapping[str, str], own: str) -> str:
    said = texts.get(own, "not measured")
    if BASE in texts and own != BASE:
        return f"{said}; the untouched base: {texts[BASE]}"
    return said


def past_native(evidence: Evidence) -> list[AnswerRow]:
    native = evidence.native
    rows = []
    if native is not None and evidence.losses:
        starts = next(iter(evidence.losses.values())).starts
        # spans ascend
        beyond = starts[bisect.bisect_left(starts, native) :]
        if beyond:
            values = {name: losses.mean_between(native) for name, losses in evidence.losses.items()}
            label = f"Loss past {length(beyond[0])}"
            rows.append(_with_differences(label, values, evidence.own, places=3))
    longest = _asked_lengths(evidence)[-1:]
    if longest and native is not None and longest[0] > native:
        rows.append(_ruler_mean(evidence, longest[0]))
    return rows


def short(evidence: Evidence) -> list[AnswerRow]:
    """Return what lengths within the native one have become."""
    native = evidence.native
    rows = []
    if native is not None and evidence.losses:
        values = {name: losses.mean_between(0, native) for name, losses in evidence.losses.items()}
        label = f"Short lengths: loss to {length(native)}"
        row = _with_differences(label, values, evidence.own, places=3)
        own = values.get(evidence.own)
        base = values.get(BASE)
        if own is not None and base is not None and evidence.own != BASE:
            word = "above" if own > base else "below"
            sentence = f"To {length(native)} its loss is {abs(own - base):.3f} {word} the base's."
            row = row._replace(sentence=sentence)
        rows.append(row)
    first = _asked_lengths(evidence)[:1]
    if first and (native is None or first[0] <= native):
        rows.append(_ruler_mean(evidence, first[0]))
    return rows


def _asked_lengths(evidence: Evidence) -> list[int]:
    figures = evidence.ruler.get(evidence.own)
    if figures is None:
        return []
    return [row["length"] for row in figures["lengths"]]


def _with_differences(label: str, values: ByModel[float], own: str, places: int) -> AnswerRow:
    base = values.get(BASE)
    cells = {}
    for name, value in values.items():
        cells[name] = number(value, places=places)
        if base is not None and name != BASE:
            difference = number(value - base, places=places, sign="+")
            cells[name] += Markup("\n{} from the base").format(difference)
    sentence = ""
    if own in values and math.isfinite(values[own]):
        sentence = f"{label}: {values[own]:.{places}f} nats per token"
        if base is not None and own != BASE:
            sentence += f"; the untouched base: {base:.{places}f}"
        sentence += "."
    return AnswerRow(label, cells, sentence)


def _ruler_mean(evidence: Evidence, tokens: int) -> AnswerRow:
    """Return the means of a length; questions that both models were asked are resampled together."""
    base = evidence.ruler.get(BASE)
    cells = {}
    for name, figures in evidence.ruler.items():
        row = _at(tokens, figures["lengths"])
        if row is None:
            continue
        cells[name] = _percent(row["mean"]) + f" ({interval(row)})"
        gains = figures.get("differences", ())
        other = str(figures.get("against"))
        if base is not None and name != BASE:
            scores = ruler.scores_of(figures["replies"])
            gains = ruler.differences(scores, ruler.scores_of(base["replies"]), seed=0)
            other = "the base"
        gain = _at(tokens, gains)
        if gain is not None:
            spread = f" ({100 * gain['low']:+.0f} to {100 * gain['high']:+.0f}) from {other}"
            cells[name] += Markup("\n") + _percent(gain["difference"], sign="+") + spread
    return AnswerRow(f"RULER's mean at {length(tokens)}, %", cells, "")


def _percent(share: float, sign: str = "") -> Markup:
    return number(100 * share, places=1, sign=sign)


def _at(tokens: int, rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["length"] == tokens), None)


def notes(evidence: Evidence) -> list[str]:
    """Return what the numbers do not say."""
    if evidence.ruler:
        text = f"RULER: {evidence.ruler_asked}; in brackets 95 % intervals."
        if f"{ruler.ALL_TASKS} of its {ruler.ALL_TASKS} tasks" not in text:
            text += f" Its threshold is one of all {ruler.ALL_TASKS} tasks."
        return [text]
    if evidence.passkeys:
        return ["A passkey asks less than most uses do: tape-ds evaluate ruler asks more."]
    return []
