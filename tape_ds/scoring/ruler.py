"""RULER's figures: scores by task and length, and the length that a model can be said to use.

An effective length is the longest one that reaches a threshold: RULER's, 85.6 %, which Llama2-7B reaches at 4,096
tokens (Hsieh et al. 2024, arXiv:2404.06654, Table 3), or 85 % of the model's own score at its shortest length (NoLiMa,
Modarressi et al. 2025, arXiv:2502.05167). RULER's threshold is one of all 13 tasks; with fewer, another model would be
at it.

Scores are shares, 0 to 1. The texts of each task and length are resampled, each with all questions about it, which are
not independent, and a probability is the share of the samples whose mean reaches the threshold. Where a text has one
question, questions are resampled.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

PUBLISHED_THRESHOLD = 0.856
ALL_TASKS = 13
"""Of RULER, whose mean the published threshold is of."""
OWN_SHARE = 0.85
RESAMPLES = 10_000
# the normal distribution has 95 % within as many standard deviations
Z_95 = 1.959963984540054
INTERVAL = (0.025, 0.975)
Texts = list[list[float]]
"""The scores of a task and length: of each text, those of its questions."""
Scores = dict[tuple[str, int], Texts]
"""By task and length."""


def scores_of(replies: Iterable[Mapping[str, Any]]) -> Scores:
    """Return the scores of replies; a reply that names no ``text`` is the only one about its text."""
    by_text: defaultdict[tuple[str, int], dict[Any, list[float]]] = defaultdict(dict)
    for number, reply in enumerate(replies):
        texts = by_text[reply["task"], reply["length"]]
        texts.setdefault(reply.get("text", ("alone", number)), []).append(float(reply["score"]))
    return {key: list(texts.values()) for key, texts in by_text.items()}


def replies_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the replies in a run's rows, one of which holds those to a task at a length."""
    replies = []
    for row in rows:
        for reply in row["replies"]:
            replies.append({"task": row["task"], "length": row["length"], **reply})
    return replies


def lengths_of(keys: Iterable[tuple[str, int]]) -> list[int]:
    return sorted({length for _, length in keys})


def figures(
    replies: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    against: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return all figures of an evaluation but its cost.

    Args:
        replies: plain mappings with ``task``, ``length``, ``score``, ``tokens`` of the prompt, and more, in order.
        seed: of the resampling.
        against: replies of another model to some of these tasks and lengths, the same questions, for the differences.
    """
    scores = scores_of(replies)
    lengths = lengths_of(scores)
    means = _resampled(scores, lengths, seed)
    tokens: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    shared = False
    for reply in replies:
        tokens[reply["task"], reply["length"]].append(reply["tokens"])
        shared = shared or "text" in reply
    cells = []
    for (task, length), texts in scores.items():
        low, high = interval(texts)
        of_cell = tokens[task, length]
        cell = {
            "task": task,
            "length": length,
            "samples": len(of_cell),
            "score": _mean_of(texts),
            "low": low,
            "high": high,
            "mean_tokens": math.fsum(of_cell) / len(of_cell),
        }
        # a text with one question is that question
        if shared:
            cell["texts"] = len(texts)
        cells.append(cell)
    first = lengths[0]
    by_length = []
    for length in lengths:
        low, high = np.quantile(means[length], INTERVAL).tolist()
        # of the same sample's score at the shortest length: the threshold is uncertain as well
        own_threshold = OWN_SHARE * means[first]
        by_length.append(
            {
                "length": length,
                "tasks": _tasks_at(scores, length),
                "mean": _mean(scores, length),
                "low": low,
                "high": high,
                "reaches_published": float((means[length] >= PUBLISHED_THRESHOLD).mean()),
                "reaches_own": float((means[length] >= own_threshold).mean()),
            }
        )
    all_figures = {
        "cells": cells,
        "lengths": by_length,
        "effective": {
            "published": _effective(by_length, PUBLISHED_THRESHOLD, "reaches_published"),
            "own": _effective(by_length, OWN_SHARE * _mean(scores, first), "reaches_own"),
        },
        "replies": list(replies),
    }
    if against is not None:
        all_figures["differences"] = differences(scores, scores_of(against), seed)
    return all_figures


def _tasks_at(scores: Scores, length: int) -> int:
    return [of for _, of in scores].count(length)


def differences(scores: Scores, base: Scores, seed: int) -> list[dict[str, Any]]:
    """Return how much more a model scores than another at each length that both were asked, over the tasks of both.

    Where both were asked a task at a length, they were asked the same questions. Texts are resampled together.
    """
    common = sorted(scores.keys() & base.keys())
    gains: Scores = {}
    of_both: Scores = {}
    for key in common:
        of_both[key] = base[key]
        gains[key] = []
        for own, theirs in zip(scores[key], base[key], strict=True):
            gains[key].append([mine - other for mine, other in zip(own, theirs, strict=True)])
    lengths = lengths_of(common)
    means = _resampled(gains, lengths, seed)
    rows = []
    for length in lengths:
        low, high = np.quantile(means[length], INTERVAL).tolist()
        rows.append(
            {
                "length": length,
                "tasks": _tasks_at(gains, length),
                "base": _mean(of_both, length),
                "difference": _mean(gains, length),
                "low": low,
                "high": high,
            }
        )
    return rows


def interval(texts: Texts) -> tuple[float, float]:
    """Return the 95 % interval of a mean: Wilson's, for as many independent questions as say the same.

    Questions of one text are not independent. Their number is divided by the design effect, the variance of the mean
    over texts divided by that of as many independent questions, and by the square of Student's t for so few texts
    against that for so many questions (Korn and Graubard 1998, Survey Methodology 24, 193-201). The result is no less
    than the number of texts, and exactly that where all questions have the same score, so that the effect is unknown.
    """
    questions = sum(map(len, texts))
    share = _mean_of(texts)
    if len(texts) == questions:
        return wilson(math.fsum(itertools.chain.from_iterable(texts)), questions)
    independent = float(len(texts))
    if 0 < share < 1 and len(texts) > 1:
        # how far each text is from having the mean score
        off = [math.fsum(scores) - share * len(scores) for scores in texts]
        squares = math.fsum(distance**2 for distance in off)
        variance = squares * len(texts) / (len(texts) - 1) / questions**2
        effect = max(1.0, variance * questions / (share * (1 - share)))
        few = stdtrit(len(texts) - 1, INTERVAL[1])
        many = stdtrit(questions - 1, INTERVAL[1])
        independent = max(independent, float(questions / effect * (many / few) ** 2))
    return wilson(share * independent, independent)


def wilson(total: float, samples: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a mean of shares (Wilson 1927); wider than needed where scores lie between 0 and
    1, since no shares vary more than right and wrong answers do."""
    share = total / samples
    spread = Z_95**2 / samples
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean_of(texts: Texts) -> float:
    """Return the mean over questions."""
    return math.fsum(itertools.chain.from_iterable(texts)) / sum(map(len, texts))


def _mean(scores: Scores, length: int) -> float:
    """Return the mean of the tasks' means, as RULER takes it."""
    of_tasks = [_mean_of(texts) for (_, of), texts in scores.items() if of == length]
    return math.fsum(of_tasks) / len(of_tasks)


def _resampled(scores: Scores, lengths: Sequence[int], seed: int) -> dict[int, np.ndarray]:
    """Return means of resampled texts, fp64 [RESAMPLES], by length."""
    means = {}
    for length in lengths:
        # a seed for each length: another length in the command changes no number of this one
        generator = np.random.default_rng((seed, length))
        of_tasks = []
        for (_, of), texts in scores.items():
            if of == length:
                # N: texts, R: resamples; a text is drawn with all its questions
                sums_N = np.array(list(map(math.fsum, texts)))
                sizes_N = np.array(list(map(len, texts)))
                chosen_RN = generator.integers(len(texts), size=(RESAMPLES, len(texts)))
                of_tasks.append(sums_N[chosen_RN].sum(axis=1) / sizes_N[chosen_RN].sum(axis=1))
        means[length] = np.mean(of_tasks, axis=0)
    return means


def _effective(
    by_length: Sequence[Mapping[str, Any]], threshold: float, name: str
) -> dict[str, Any]:
    """Return the longest length that reaches a threshold, and how probable that is; of none, the shortest's
    probability."""
    for row in reversed(by_length):
        if row["mean"] >= threshold:
            return {"threshold": threshold, "length": row["length"], "probability": row[name]}
    return {"threshold": threshold, "length": None, "probability": by_length[0][name]}
