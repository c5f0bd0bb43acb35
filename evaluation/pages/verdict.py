"""What a page says first: of each comparison, which model is lowest where, and by how much."""

import math
import statistics
from collections.abc import Sequence

from scipy import stats

from evaluation.pages import losses, perplexities
from evaluation.pages.columns import Column
from evaluation.pages.tables import Score, Scores

LEVEL = 0.95
OTHER_TOKENS = "the models have different tokenizers, so they do not compare"


def sentences(columns: Sequence[Column]) -> list[str]:
    """One for each text on which two models or more were scored alike; perplexities first."""
    native = losses.native_length(columns)
    said = []
    found = {scoring: each for scoring, each in perplexities.entries_of(columns).items() if len(dict(each[1])) > 1}
    for scoring, (title, entries) in found.items():
        scores = perplexities.scores_of(columns, title, entries)
        name = scoring.source if len([each for each in found if each.source == scoring.source]) == 1 else title
        alike = len(perplexities.tokenizers(columns, scores)) < 2
        said.append(f"Perplexity on {name}: {_verdict(scores, native, percent=True) if alike else OTHER_TOKENS}.")
    for text, scores in losses.groups(columns).items():
        if len(scores.heads) > 1:
            said.append(f"Loss by position, {text}: {_verdict(scores, native)}.")
    return said


def _verdict(scores: Scores, native: int | None, *, percent: bool = False) -> str:
    """At the longest length or farthest position that all have, and at the last of them in the native window; of
    perplexities (``percent``) the share by which one lies below the other, of losses the difference."""
    common = [int(tokens) for tokens in scores.frame().dropna().index]
    if not common:
        return "there is no length at which all have a number"
    inside = [tokens for tokens in common if native is not None and (tokens <= native if percent else tokens < native)]
    places = dict.fromkeys([common[-1], *inside[-1:]])
    ranked = {n: sorted((e for e in scores.found if e.tokens == n), key=lambda each: each.value) for n in places}
    names = {head.run: _quoted(head.text) for head in scores.heads}
    said, intervals, unit = [], [], "" if percent else f" {losses.NATS}"
    for tokens, (first, second, *others) in ranked.items():
        if len({each.samples for each in (first, second, *others)}) > 1:
            said.append(f"at {first.name} they do not compare, being means over other numbers of tokens")
            continue
        where = f"{'' if first.row else 'at '}{first.name}{', in the native window,' if tokens in inside else ''}"
        told = f"{where} {names[first.run]} is lowest, {_apart(first, second, percent)}{unit} below {names[second.run]}"
        intervals.append(_interval(first, second, percent))
        told += f" ({intervals[-1]})" if intervals[-1] else ""
        if others:
            told += f" and {_apart(first, others[-1], percent)} below {names[others[-1].run]}, the last of {len(names)}"
        said.append(told)
    return "; ".join(said) + ("" if any(intervals) or not intervals else "; a single run of each")


def _apart(one: Score, other: Score, percent: bool) -> str:
    if not percent:
        return f"{other.value - one.value:.3f}"
    return f"{100 * (1 - one.value / other.value):.2g} %"


def _interval(one: Score, other: Score, percent: bool) -> str:
    """Of the difference: from documents that both were scored on, in pairs; else from both standard errors, as if they
    were independent; empty where neither is stored."""
    both = sorted(set(one.documents) & set(other.documents))
    if len(both) > 1:
        apart = [other.documents[name] - one.documents[name] for name in both]
        middle, error = statistics.fmean(apart), statistics.stdev(apart) / math.sqrt(len(apart))
        half, over = stats.t.ppf((1 + LEVEL) / 2, len(apart) - 1) * error, f"{len(apart)} documents, in pairs"
    elif one.error and other.error:
        middle = math.log(other.value / one.value) if percent else other.value - one.value
        shares = (one.error / one.value, other.error / other.value) if percent else (one.error, other.error)
        half, over = stats.norm.ppf((1 + LEVEL) / 2) * math.hypot(*shares), "documents, as if independent"
    else:
        return ""
    ends = [-100 * math.expm1(-end) if percent else end for end in (middle - half, middle + half)]
    said = f"95 % interval over {over}: {ends[0]:.2g} to {ends[1]:.2g}{' %' if percent else ''}".replace("-", "−")
    return said if ends[0] > 0 else f"{said}, so chance can explain it"


def _quoted(name: str) -> str:
    """In quotation marks where it is more than one word."""
    return name if name.replace("-", "_").isidentifier() else f"“{name}”"
