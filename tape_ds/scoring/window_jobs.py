"""Perplexity as independent jobs, the result of a job, and the figures of all jobs.

A job is a few neighbouring windows of a source at one length, or one part of a text whose loss is taken by position.
The jobs follow from the texts and the options alone, so that a resumed evaluation has the same ones; sums are exact, so
that the figures depend on neither the order of the jobs nor the number of processes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from tape_ds.scoring import loss_by_position, perplexity, windows
from tape_ds.scoring.models import used_at
from tape_ds.scoring.perplexity import WindowLoss
from tape_ds.scoring.scored_texts import ScoredText
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.scoring.windows import Scoring, Window

TOKENS_A_JOB = 65_536
"""Tokens that are read between two lines of the journal, unless one window has more."""
NAMED = 20
"""Documents whose names are stored, of those that are too short."""

Texts = Mapping[str, Sequence[ScoredText]]
"""The texts of each source, by its spec."""


class WindowJob(NamedTuple):
    """Windows of a source, each with the number of its text."""

    source: str
    length: int
    windows: tuple[tuple[int, Window], ...]
    spans: bool = False
    """Whether the loss by position of a single window is computed."""


Jobs = dict[str, WindowJob]
"""By their keys in the journal."""


def plan(texts: Texts, lengths: Sequence[int], scoring: Scoring) -> Jobs:
    """Return all jobs, the longest windows first."""
    jobs: Jobs = {}
    for source, parts in texts.items():
        if scoring.spans is not None:
            begin, longest = scoring.begin is not None, max(lengths)
            for at, text in enumerate(parts):
                # the beginning of each document; of a stream, where documents begin anywhere, every block
                found = windows.blocks(len(text.ids), longest, begin=begin) if text.stream else []
                for window in found or [Window(0, min(len(text.ids), longest - begin), 1 - begin)]:
                    if window.targets > 0:
                        key = f"{source} spans {at} from {window.start}"
                        jobs[key] = WindowJob(source, longest, ((at, window),), spans=True)
        for length in sorted(lengths, reverse=True):
            groups: list[list[tuple[int, Window]]] = []
            tokens = 0
            for at, text in enumerate(parts):
                for window in scoring.windows(len(text.ids), length):
                    size = window.end - window.start
                    if not groups or tokens + size > TOKENS_A_JOB:
                        groups.append([])
                        tokens = 0
                    groups[-1].append((at, window))
                    tokens += size
            for number, group in enumerate(groups):
                jobs[f"{source} length {length} group {number}"] = WindowJob(source, length, tuple(group))
    return dict(sorted(jobs.items(), key=lambda item: -item[1].length))


def work(model: PreTrainedModel, texts: Texts, scoring: Scoring, batch: int, chunk: int, job: WindowJob) -> Any:
    """Return ``[nll, foreseen]`` of each window, or the loss by position, with the model's encoding set to the length.

    ``batch``, ``chunk``: see :func:`tape_ds.scoring.perplexity.score_windows`.
    """
    pairs = [(texts[job.source][at].ids, window) for at, window in job.windows]
    with used_at(model, job.length):
        if job.spans:
            assert scoring.spans is not None
            ids_1T = perplexity.sequence(*pairs[0], scoring.begin)[None]
            return loss_by_position.score(model, ids_1T, scoring.spans, chunk).to_dict()
        losses = perplexity.score_windows(model, pairs, begin=scoring.begin, batch=batch, chunk=chunk)
    return [(loss.nll, loss.foreseen) for loss in losses]


def tokens(jobs: Jobs) -> int:
    """Return the tokens that all jobs read."""
    return sum(window.end - window.start for job in jobs.values() for _, window in job.windows)


def figures(
    texts: Texts, lengths: Sequence[int], scoring: Scoring, jobs: Jobs, found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all figures except the cost.

    Args:
        found: the results of :func:`work` by job.
    """
    entries, by_position = [], {}
    for source, parts in texts.items():
        for length in sorted(lengths):
            at_length = (source, length, False)
            same = {key: job for key, job in jobs.items() if (job.source, job.length, job.spans) == at_length}
            entries.append(_entry(source, length, parts, scoring, same, found))
        if scoring.spans is not None:
            spans: dict[int, list[SpanLosses]] = {}
            for key, job in jobs.items():
                if job.spans and job.source == source:
                    spans.setdefault(job.windows[0][0], []).append(SpanLosses.from_dict(found[key]))
            by_position[source] = {parts[at].name: SpanLosses.merge(spans[at]).to_dict() for at in sorted(spans)}
    documents = {source: len(parts) for source, parts in texts.items()}
    return {"perplexity": entries, "loss_by_position": by_position, "documents": documents}


def _entry(
    source: str, length: int, texts: Sequence[ScoredText], scoring: Scoring, jobs: Jobs, found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the perplexity of one source at one length, and the documents that are shorter or left out."""
    by_text: list[list[WindowLoss]] = [[] for _ in texts]
    reach = np.zeros(len(texts), np.int64)
    for key, job in jobs.items():
        for (at, window), (nll, foreseen) in zip(job.windows, found[key], strict=True):
            by_text[at].append(WindowLoss(nll, foreseen, window.targets))
            reach[at] = max(reach[at], window.end)
    pooled = perplexity.pool(by_text)
    pairs = list(zip(texts, by_text, strict=True))
    left_out = [text.name for text, losses in pairs if not losses]
    shorter = [text.name for text, losses in pairs if losses and len(text.ids) < scoring.room(length)]
    unread = sum(len(text.ids) for text in texts) - int(reach.sum())
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
        "shorter": {"documents": len(shorter), "names": shorter[:NAMED]},
        "left_out": {"documents": len(left_out), "names": left_out[:NAMED], "tokens": unread},
    }
