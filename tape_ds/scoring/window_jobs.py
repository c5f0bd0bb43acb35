"""Perplexity as jobs that do not depend on each other, what one job finds, and the figures that all of them make.

A job is some neighbouring windows of a source at one length, or one stretch of a text whose loss is taken by position.
How windows are dealt into jobs follows from the texts and the options alone, so that a resumed evaluation has the same
ones; sums are exact, so that figures depend on neither the jobs' order nor the number of processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from tape_ds.scoring import loss_by_position, perplexity, windows
from tape_ds.scoring.models import used_at
from tape_ds.scoring.perplexity import WindowLoss
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.scoring.texts import ScoredText
from tape_ds.scoring.windows import Scoring, Window

TOKENS_A_JOB = 65_536
"""Tokens that are read between two lines of the journal, or one window where that has more."""
NAMED = 20
"""Documents whose names are stored, of those that are too short."""

Texts = Mapping[str, Sequence[ScoredText]]
"""The texts of each source, by its spec."""


class WindowJob(NamedTuple):
    """Windows of a source, each with its text's number; a stretch for the loss by position is one of its own."""

    source: str
    length: int
    windows: tuple[tuple[int, Window], ...]
    spans: bool = False
    """Whether the loss by position is asked for."""


Jobs = dict[str, WindowJob]
"""By the keys under which the journal knows them."""


def plan(texts: Texts, lengths: Sequence[int], scoring: Scoring) -> Jobs:
    """Return all jobs, the longest windows first."""
    jobs: Jobs = {}
    for source, parts in texts.items():
        if scoring.spans is not None:
            jobs |= _span_jobs(source, parts, max(lengths), scoring.begin is not None)
        for length in sorted(lengths, reverse=True):
            listed = [
                (at, window) for at, text in enumerate(parts) for window in scoring.windows(len(text.ids), length)
            ]
            for number, group in enumerate(_groups(listed)):
                jobs[f"{source} length {length} group {number}"] = WindowJob(source, length, group)
    return dict(sorted(jobs.items(), key=lambda item: -item[1].length))


def _groups(listed: Sequence[tuple[int, Window]]) -> Iterator[tuple[tuple[int, Window], ...]]:
    """Neighbours of ``TOKENS_A_JOB`` tokens together, or a little less."""
    group: list[tuple[int, Window]] = []
    tokens = 0
    for each in listed:
        size = each[1].end - each[1].start
        if group and tokens + size > TOKENS_A_JOB:
            yield tuple(group)
            group, tokens = [], 0
        group.append(each)
        tokens += size
    if group:
        yield tuple(group)


def _span_jobs(source: str, texts: Sequence[ScoredText], length: int, begin: bool) -> Jobs:
    """Return the beginning of each document; of a stream, which has no such thing, every block."""
    jobs: Jobs = {}
    for at, text in enumerate(texts):
        found = windows.blocks(len(text.ids), length, begin=begin) if text.stream else []
        for window in found or [Window(0, min(len(text.ids), length - begin), 1 - begin)]:
            if window.targets > 0:
                jobs[f"{source} spans {at} from {window.start}"] = WindowJob(
                    source, length, ((at, window),), spans=True
                )
    return jobs


def work(model: PreTrainedModel, texts: Texts, scoring: Scoring, batch: int, chunk: int, job: WindowJob) -> Any:
    """Return what a loaded model finds for a job, at the job's length as its encoding says: ``[nll, foreseen]`` of each
    window, or the loss by position.

    ``batch``, ``chunk``: see :func:`tape_ds.scoring.perplexity.score_windows`.
    """
    pairs = [(texts[job.source][at].ids, window) for at, window in job.windows]
    with used_at(model, job.length):
        if job.spans:
            assert scoring.spans is not None
            ids_1T = perplexity.sequence(*pairs[0], scoring.begin)[None]
            return loss_by_position.score(model, ids_1T, scoring.spans, chunk).to_dict()
        found = perplexity.score_windows(model, pairs, begin=scoring.begin, batch=batch, chunk=chunk)
    return [(each.nll, each.foreseen) for each in found]


def tokens(jobs: Jobs) -> int:
    """Return tokens that all jobs together read."""
    return sum(window.end - window.start for job in jobs.values() for _, window in job.windows)


def figures(
    texts: Texts, lengths: Sequence[int], scoring: Scoring, jobs: Jobs, found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all figures but the cost.

    Args:
        found: by job, what :func:`work` gave.
    """
    entries = []
    for source, parts in texts.items():
        for length in sorted(lengths):
            asked = (source, length, False)
            same = {key: job for key, job in jobs.items() if (job.source, job.length, job.spans) == asked}
            entries.append(_entry(source, length, parts, scoring, same, found))
    by_position = {source: _by_document(parts, source, jobs, found) for source, parts in texts.items()}
    return {
        "perplexity": entries,
        "loss_by_position": by_position if scoring.spans is not None else {},
        "documents": {source: len(parts) for source, parts in texts.items()},
    }


def _entry(
    source: str,
    length: int,
    texts: Sequence[ScoredText],
    scoring: Scoring,
    jobs: Jobs,
    found: Mapping[str, Any],
) -> dict[str, Any]:
    """Return perplexity of one source at one length, the documents too short to fill a window, and what was left
    out."""
    by_text: list[list[WindowLoss]] = [[] for _ in texts]
    reach = np.zeros(len(texts), np.int64)
    for key, job in jobs.items():
        for (at, window), (nll, foreseen) in zip(job.windows, found[key], strict=True):
            by_text[at].append(WindowLoss(nll, foreseen, window.targets))
            reach[at] = max(reach[at], window.end)
    pooled = perplexity.pool(by_text)
    pairs = list(zip(texts, by_text, strict=True))
    without = [text.name for text, losses in pairs if not losses]
    short = [text.name for text, losses in pairs if losses and len(text.ids) < scoring.room(length)]
    return {
        "source": source,
        "convention": scoring.convention,
        "length": length,
        "stride": scoring.stride if scoring.convention != "blocks" else length,
        "bos": scoring.begin is not None,
        "nll": pooled.nll,
        "perplexity": pooled.perplexity,
        "standard_error": pooled.standard_error,
        "accuracy": pooled.accuracy,
        "targets": pooled.targets,
        "windows": pooled.windows,
        "documents": pooled.documents,
        "shorter": _named(short),
        "left_out": {**_named(without), "tokens": sum(len(text.ids) for text in texts) - int(reach.sum())},
    }


def _named(names: Sequence[str]) -> dict[str, Any]:
    """Return how many documents, and which."""
    return {"documents": len(names), "names": list(names[:NAMED])}


def _by_document(texts: Sequence[ScoredText], source: str, jobs: Jobs, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return loss by position of each text, over all its stretches."""
    parts: dict[int, list[SpanLosses]] = {}
    for key, job in jobs.items():
        if job.spans and job.source == source:
            parts.setdefault(job.windows[0][0], []).append(SpanLosses.from_dict(found[key]))
    return {texts[at].name: SpanLosses.merge(parts[at]).to_dict() for at in sorted(parts)}
