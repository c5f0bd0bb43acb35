"""What a page says first: of each comparison, which model is lowest where, and by how much."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from evaluation.pages import losses, perplexities
from evaluation.pages.columns import Column
from evaluation.pages.tables import Score, Scores
from tape_ds.scoring import statistics


def sentences(columns: Sequence[Column]) -> list[str]:
    """Return one for each text on which two models or more were scored alike; perplexities first."""
    native = losses.native_length(columns)
    sentences = []
    found = {scoring: each for scoring, each in perplexities.entries_of(columns).items() if len(dict(each)) > 1}
    for scoring, entries in found.items():
        line = "the models have different tokenizers, so they do not compare"
        if perplexities.same_tokenizer(columns, entries):
            line = _verdict(perplexities.scores_of(columns, scoring, entries), native, percent=True)
        alone = [each.source for each in found].count(scoring.source) == 1
        sentences.append(f"Perplexity on {scoring.source if alone else scoring}: {line}.")
    for text, scores in losses.groups(columns).items():
        if len(scores.heads) > 1:
            sentences.append(f"Loss by position, {text}: {_verdict(scores, native)}.")
    return sentences


def _verdict(scores: Scores, native: int | None, *, percent: bool = False) -> str:
    """At the longest length or farthest position that all have, and at the last of them in the native window; of
    perplexities (``percent``) the share by which one lies below the other, of losses the difference."""
    common = [int(tokens) for tokens in scores.frame().dropna().index]
    if not common:
        return "there is no length at which all have a number"
    inside = [tokens for tokens in common if native is not None and (tokens <= native if percent else tokens < native)]
    names = {h.run: h.text if h.text.replace("-", "_").isidentifier() else f"“{h.text}”" for h in scores.heads}
    sentences, intervals, unit = [], [], "" if percent else f" {losses.NATS}"
    for tokens in dict.fromkeys([common[-1], *inside[-1:]]):
        ranked = sorted((each for each in scores.found if each.tokens == tokens), key=lambda each: each.value)
        first, second = ranked[:2]
        if len({each.samples for each in ranked}) > 1:
            sentences.append(f"at {first.name} they do not compare, being means over other numbers of tokens")
            continue
        where = f"{'' if first.row else 'at '}{first.name}{', in the native window,' if tokens in inside else ''}"
        line = f"{where} {names[first.run]} is lowest, {_apart(first, second, percent)}{unit} below {names[second.run]}"
        intervals.append(_interval(first, second, percent))
        line += f" ({intervals[-1]})" if intervals[-1] else ""
        if len(ranked) > 2:
            last = ranked[-1]
            line += f" and {_apart(first, last, percent)} below {names[last.run]}, the last of {len(names)}"
        sentences.append(line)
    return "; ".join(sentences) + ("" if any(intervals) or not intervals else "; a single run of each")


def _apart(one: Score, other: Score, percent: bool) -> str:
    return f"{100 * (1 - one.value / other.value):.2g} %" if percent else f"{other.value - one.value:.3f}"


def _interval(one: Score, other: Score, percent: bool) -> str:
    """Of the difference: from documents that both were scored on, in pairs; else from both standard errors, as if they
    were independent; empty where neither is stored."""
    apart = [other.documents[name] - one.documents[name] for name in one.documents if name in other.documents]
    if len(apart) > 1 and (found := statistics.sample(apart)).half_width is not None:
        middle, half, over = found.mean, found.half_width, f"{len(apart)} documents, in pairs"
    elif one.error and other.error:
        middle = math.log(other.value / one.value) if percent else other.value - one.value
        shares = (one.error / one.value, other.error / other.value) if percent else (one.error, other.error)
        half = NormalDist().inv_cdf((1 + statistics.CONFIDENCE) / 2) * math.hypot(*shares)
        over = "documents, as if independent"
    else:
        return ""
    ends = [-100 * math.expm1(-end) if percent else end for end in (middle - half, middle + half)]
    interval = f"95 % interval over {over}: {ends[0]:.2g} to {ends[1]:.2g}{' %' if percent else ''}".replace("-", "−")
    return interval if ends[0] > 0 else f"{interval}, so chance can explain it"
