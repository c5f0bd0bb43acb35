"""Answers that a reader of the report wants first: the length that a model can use, its loss past the native length,
and the loss at short lengths, each beside the untouched base.

A usable length is RULER's effective length where its questions were asked. Passkeys and losses allow less to be said,
and their rows are named after what they measure.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from markupsafe import Markup

from tape_ds.numbers import length
from tape_ds.results import UNTOUCHED, WITHOUT_UPDATES, Result, passkeys_of
from tape_ds.scoring import ruler
from tape_ds.scoring.report_columns import RUN, Column
from tape_ds.scoring.report_parts import HTML, MISSING, number
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
    remarks = []
    for column in columns:
        if column.name in shown_beside:
            continue
        evidence = evidence_of(column, bases[column.name])
        rows = [*usable(evidence), *past_native(evidence), *short(evidence)]
        if not rows:
            continue
        order = [
            BASE,
            *(name for row in rows for name in row.cells if name not in (BASE, evidence.own)),
            evidence.own,
        ]
        heads = [name for name in dict.fromkeys(order) if any(name in row.cells for row in rows)]
        table = [[row.label, *(row.cells.get(name, MISSING) for name in heads)] for row in rows]
        sentences = " ".join(row.sentence for row in rows if row.sentence)
        cards.append(HTML.answer(column.name, sentences, ["", *heads], table))
        remarks += notes(evidence)
    if cards:
        return [HTML.answers(cards, list(dict.fromkeys(remarks)))]
    return []


def is_base(column: Column) -> bool:
    """Return whether a column holds evaluations of a model that no run of this project made."""
    return any(
        (record.result.model or {}).get("kind") == "transformers"
        for record in column.records.values()
    )


def base_of(column: Column, columns: Sequence[Column]) -> Column | None:
    """Return the column of the untouched base: the one that the run names, or the only one if no run is recorded."""
    if is_base(column):
        return None
    others = [each for each in columns if is_base(each)]
    if RUN in column.records:
        named = column.records[RUN].result.config.get("model")
        others = [each for each in others if named in _addresses(each)]
    if len(others) == 1:
        return others[0]
    return None


def _addresses(column: Column) -> list[str]:
    return [
        record.result.model["address"] for record in column.records.values() if record.result.model
    ]


def native_length(column: Column, base: Column | None = None) -> int | None:
    """Return the tokens that the base of a column's model was made for; None: not recorded."""
    if RUN in column.records:
        return column.records[RUN].result.figures.get("native_length")
    for each in filter(None, (base, column)):
        for record in each.records.values():
            model = record.result.model or {}
            rope = model.get("rope_parameters") or {}
            if found := rope.get("original_max_position_embeddings") or model.get("native_length"):
                return int(found)
    return None


def evidence_of(column: Column, base: Column | None) -> Evidence:
    run = column.records[RUN].result if RUN in column.records else None
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
        losses=_beside_base(_evaluated_losses(column, base, own), _run_losses(run, own)),
    )


def _beside_base(*candidates: ByModel[T]) -> ByModel[T]:
    """Return the first that has the base too, or else the first that is there at all."""
    present = [each for each in candidates if each]
    return next((each for each in present if BASE in each), present[0] if present else {})


def _variants(run: Result) -> list[str]:
    """Return the models that a run scored, its own last; the trained one without its updates is left out."""
    found = [*(run.figures.get("loss_by_position") or {})]
    for name in ("passkey", "ruler"):
        found += [row["variant"] for row in run.figures.get(name) or [] if "variant" in row]
    return [name for name in dict.fromkeys(found) if not name.endswith(WITHOUT_UPDATES)]


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
    if "ruler" in column.records:
        result = column.records["ruler"].result
        tasks = max(each["tasks"] for each in result.figures["lengths"])
        asked = f"{tasks} of its {ruler.ALL_TASKS} tasks, {result.config['samples']} questions of each at each length"
        asked += f", essays from {result.figures['haystack']}"
        evaluated[own] = result.figures
        other = base.records.get("ruler") if base is not None else None
        if other is not None and asked_alike(result, other.result):
            evaluated[BASE] = other.result.figures
    by_run: ByModel[Mapping[str, Any]] = {}
    rows = [] if run is None else run.figures.get("ruler") or []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        of_variant = [row for row in rows if row["variant"] == variant]
        by_run[_heading(variant)] = ruler.figures(
            ruler.replies_of(of_variant), seed=(run.seed if run else None) or 0
        )
    chosen = _beside_base(evaluated, by_run)
    if chosen is by_run and rows:
        tasks = ", ".join(dict.fromkeys(row["task"] for row in rows))
        asked = f"{tasks} of its {ruler.ALL_TASKS} tasks, asked by the run itself"
        asked += f", {rows[0]['samples']} questions of each at each length"
    return asked, chosen


def asked_alike(one: Result, other: Result) -> bool:
    """Return whether two evaluations by RULER asked the same questions in the same form."""
    free = ("chunk",)

    def questions(result: Result) -> dict[str, Any]:
        config = {name: value for name, value in result.config.items() if name not in free}
        return config | {"haystack": result.figures.get("haystack"), "seed": result.seed}

    return questions(one) == questions(other)


def _evaluated_passkeys(column: Column, base: Column | None, own: str) -> ByModel[Passkeys]:
    if "passkey" not in column.records:
        return {}
    result = column.records["passkey"].result
    found = {own: _counts(result.figures["cells"])}
    other = base.records.get("passkey") if base is not None else None
    forms = ("form", "protocol")
    if other is not None and all(
        result.config.get(name) == other.result.config.get(name) for name in forms
    ):
        found[BASE] = _counts(other.result.figures["cells"])
    return found


def _run_passkeys(run: Result | None, own: str) -> ByModel[Passkeys]:
    stored = [] if run is None else run.figures.get("passkey") or []
    if not stored:
        return {}
    # an older run asked its own model only
    if "variant" not in stored[0]:
        return {own: _counts(stored)}
    names = dict.fromkeys(
        row["variant"] for row in stored if not row["variant"].endswith(WITHOUT_UPDATES)
    )
    return {_heading(name): _counts(passkeys_of(stored, name)) for name in names}


def _counts(cells: Sequence[Mapping[str, Any]]) -> Passkeys:
    found: dict[int, tuple[int, int]] = {}
    for cell in cells:
        if cell["trials"]:
            correct, trials = found.get(cell["length"], (0, 0))
            found[cell["length"]] = (correct + cell["correct"], trials + cell["trials"])
    return dict(sorted(found.items()))


def _evaluated_losses(column: Column, base: Column | None, own: str) -> ByModel[SpanLosses]:
    if "perplexity" not in column.records:
        return {}
    stored = column.records["perplexity"].result.figures.get("loss_by_position") or {}
    texts = _texts(stored)
    if not texts:
        return {}
    other = base.records.get("perplexity") if base is not None else None
    others = {} if other is None else _texts(other.result.figures.get("loss_by_position") or {})
    common = [key for key in texts if key in others and others[key].counts == texts[key].counts]
    found = {own: _merged(texts, common or list(texts))}
    if common:
        found[BASE] = _merged(others, common)
    return found


def _texts(stored: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], SpanLosses]:
    found = {}
    for source, documents in stored.items():
        for name, losses in documents.items():
            found[source, name] = SpanLosses.from_dict(losses)
    return found


def _merged(texts: Mapping[Any, SpanLosses], chosen: Sequence[Any]) -> SpanLosses:
    """Return the mean over the texts whose spans are as long as the first's."""
    span = texts[chosen[0]].span
    return SpanLosses.merge(texts[key] for key in chosen if texts[key].span == span)


def _run_losses(run: Result | None, own: str) -> ByModel[SpanLosses]:
    stored = {} if run is None else run.figures.get("loss_by_position") or {}
    found = {}
    for variant, documents in stored.items():
        if documents and not variant.endswith(WITHOUT_UPDATES):
            found[_heading(variant)] = SpanLosses.merge(
                map(SpanLosses.from_dict, documents.values())
            )
    return found


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


def _effective(evidence: Evidence, rule: str) -> AnswerRow:
    shortest = next(iter(evidence.ruler.values()))["lengths"][0]["length"]
    label = f"Usable length by {RULES[rule].format(length(shortest))}"
    texts = {}
    for name, figures in evidence.ruler.items():
        found = figures["effective"][rule]
        reached = (
            f"below {length(shortest)}" if found["length"] is None else length(found["length"])
        )
        if found["length"] == figures["lengths"][-1]["length"]:
            reached += ", the longest asked"
        texts[name] = f"{reached} (probability {100 * found['probability']:.0f} %)"
    sentence = ""
    if rule == "published":
        sentence = f"{label}: {_beside(texts, evidence.own)}."
    return AnswerRow(label, {name: Markup.escape(text) for name, text in texts.items()}, sentence)


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
        else:
            longest = ", the longest asked" if reached == max(counts) else ""
            texts[name] = (
                f"{length(reached)}{longest} ({counts[reached][1]} of {counts[reached][1]} there)"
            )
    cells = {name: Markup.escape(text) for name, text in texts.items()}
    label = "Usable length by passkeys (all found)"
    return AnswerRow(label, cells, f"{label}: {_beside(texts, evidence.own)}.")


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
    cells = {name: Markup.escape(text) for name, text in texts.items()}
    if evidence.passkeys:
        sentence = ""
    else:
        sentence = f"{label}: {_beside(texts, evidence.own)}."
    return AnswerRow(label, cells, sentence)


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
        beyond = [start for start in starts if start >= native]
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
        rows.append(
            _with_differences(
                f"Short lengths: loss to {length(native)}", values, evidence.own, places=3
            )
        )
        own = values.get(evidence.own)
        base = values.get(BASE)
        if own is not None and base is not None and evidence.own != BASE:
            word = "above" if own > base else "below"
            sentence = f"To {length(native)} its loss is {abs(own - base):.3f} {word} the base's."
            rows[-1] = rows[-1]._replace(sentence=sentence)
    first = _asked_lengths(evidence)[:1]
    if first and (native is None or first[0] <= native):
        rows.append(_ruler_mean(evidence, first[0]))
    return rows


def _asked_lengths(evidence: Evidence) -> list[int]:
    figures = evidence.ruler.get(evidence.own)
    if figures is None:
        return []
    return [each["length"] for each in figures["lengths"]]


def _with_differences(label: str, values: ByModel[float], own: str, places: int) -> AnswerRow:
    base = values.get(BASE)
    cells = {}
    for name, value in values.items():
        cells[name] = number(value, places=places)
        if base is not None and name != BASE:
            cells[name] += Markup("\n{} from the base").format(
                number(value - base, places=places, sign="+")
            )
    sentence = ""
    if own in values and math.isfinite(values[own]):
        sentence = f"{label}: {values[own]:.{places}f} nats per token"
        sentence += (
            f"; the untouched base: {base:.{places}f}." if base is not None and own != BASE else "."
        )
    return AnswerRow(label, cells, sentence)


def _ruler_mean(evidence: Evidence, tokens: int) -> AnswerRow:
    """Return the means of a length; questions that both models were asked are resampled together."""
    base = evidence.ruler.get(BASE)
    cells = {}
    for name, figures in evidence.ruler.items():
        row = next((each for each in figures["lengths"] if each["length"] == tokens), None)
        if row is None:
            continue
        cells[name] = (
            _percent(row["mean"]) + f" ({100 * row['low']:.0f} to {100 * row['high']:.0f})"
        )
        if base is not None and name != BASE:
            paired = ruler.differences(
                ruler.scores_of(figures["replies"]), ruler.scores_of(base["replies"]), seed=0
            )
            gain = next((each for each in paired if each["length"] == tokens), None)
            other = "the base"
        else:
            stored = figures.get("differences", ())
            gain = next((each for each in stored if each["length"] == tokens), None)
            other = str(figures.get("against"))
        if gain is not None:
            spread = f" ({100 * gain['low']:+.0f} to {100 * gain['high']:+.0f}) from {other}"
            cells[name] += Markup("\n") + _percent(gain["difference"], sign="+") + spread
    return AnswerRow(f"RULER's mean at {length(tokens)}, %", cells, "")


def _percent(share: float, sign: str = "") -> Markup:
    return number(100 * share, places=1, sign=sign)


def notes(evidence: Evidence) -> list[str]:
    """Return what the numbers do not say."""
    if evidence.ruler:
        text = f"RULER: {evidence.ruler_asked}; in brackets 95 % intervals."
        every = f"{ruler.ALL_TASKS} of its {ruler.ALL_TASKS} tasks" in text
        return [text if every else f"{text} Its threshold is one of all {ruler.ALL_TASKS} tasks."]
    if evidence.passkeys:
        return ["A passkey asks less than most uses do: tape-ds evaluate ruler asks more."]
    return []
