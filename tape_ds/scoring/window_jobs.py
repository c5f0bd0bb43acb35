"""Perplexity of texts as independent jobs: the texts, the jobs, the result of a job, and the figures of all jobs.

A job is a few neighbouring windows of a source at one length, or one part of a text whose loss is taken by position.
The jobs follow from the texts and the options alone, so that a resumed evaluation has the same ones; sums are exact, so
that the figures depend on neither the order of the jobs nor the number of processes.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from tape_ds import storage
from tape_ds.data import prompting, selection, tokenized
from tape_ds.data.sources import Source
from tape_ds.errors import UserError
from tape_ds.models.files import exact
from tape_ds.scoring import losses, windows
from tape_ds.scoring.losses import WindowLoss
from tape_ds.scoring.models import used_at
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.scoring.windows import Scoring, Window

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENS_A_JOB = 65_536
"""Tokens that are read between two lines of the journal, unless one window has more."""
NAMED = 20
"""Documents whose names are stored, of those that are too short."""


@dataclass(frozen=True)
class ScoredText:
    """A text that windows are cut from."""

    name: str
    ids: np.ndarray
    """int32 [n]; of a single document mapped from the disk."""
    stream: bool
    """Whether it consists of several documents, so that its beginning is not a document's."""


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


def read_texts(
    source: Source,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    split: str,
    min_tokens: int,
    max_tokens: int | None = None,
    max_documents: int | None = None,
    join: int | None = None,
    bare: bool = False,
) -> list[ScoredText]:
    """Return the texts of one source; they are tokenised once and cached. Tokens that the tokenizer appends to every
    text are removed.

    Args:
        split: of sources that have splits.
        min_tokens: shorter documents are left out; what ``bare`` removes does not count.
        max_tokens: documents are cut to this length.
        max_documents: the first ones that are long enough.
        join: number of consecutive documents that make one text.
        bare: remove a document's own BOS and EOS.
    """
    begin = 0
    end = 0
    if not source.tokenised:
        begin, end = prompting.around(tokenizer)
    least = min_tokens + end
    if bare:
        least += begin
    cache = storage.cache_home() / "data"
    try:
        selected = selection.select(
            [source.spec], tokenizer, split, cache, min_tokens=least, max_documents=max_documents
        )
    except UserError as error:
        # with the names of this command's options
        renamed = []
        for problem in error.problems:
            remedy = problem.remedy.replace("min_document_tokens", "--min_tokens")
            renamed.append(replace(problem, field=source.field, remedy=remedy))
        raise UserError(renamed) from error

    texts = []
    seen: Counter[str] = Counter()
    for batch in selected.documents.with_format("arrow").iter(batch_size=64):
        names = batch.column("name").to_pylist()
        rows = batch.column("input_ids").combine_chunks()
        for name, row in zip(names, rows, strict=True):
            seen[name] += 1
            unique = f"{name} ({seen[name]})" if seen[name] > 1 else name
            # a folder of tokens may have 16 bits
            ids = row.values.to_numpy().astype(np.int32, copy=False)
            ids = ids[: len(ids) - end]
            if bare:
                ids = tokenized.without_ends(ids, tokenizer)
            texts.append(ScoredText(unique, ids[:max_tokens], source.stream))
    if join is None:
        return texts
    joined = []
    for at in range(0, len(texts), join):
        several = texts[at : at + join]
        name = several[0].name
        if len(several) > 1:
            name = f"{name} to {several[-1].name}"
        joined.append(ScoredText(name, np.concatenate([text.ids for text in several]), stream=True))
    return joined


def plan(texts: Texts, lengths: Sequence[int], scoring: Scoring) -> Jobs:
    """Return all jobs, the longest windows first."""
    jobs: Jobs = {}
    for source, parts in texts.items():
        if scoring.spans is not None:
            begin = scoring.begin is not None
            longest = max(lengths)
            for at, text in enumerate(parts):
                # the beginning of each document; of a stream, where documents begin anywhere, every block
                parts_of_text = []
                if text.stream:
                    parts_of_text = windows.blocks(len(text.ids), longest, begin=begin)
                if not parts_of_text:
                    parts_of_text = [Window(0, min(len(text.ids), longest - begin), 1 - begin)]
                for window in parts_of_text:
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
                key = f"{source} length {length} group {number}"
                jobs[key] = WindowJob(source, length, tuple(group))
    # the longest first: what does not fit in memory is found at once
    return dict(sorted(jobs.items(), key=lambda item: -item[1].length))


def work(
    model: PreTrainedModel, texts: Texts, scoring: Scoring, batch: int, chunk: int, job: WindowJob
) -> Any:
    """Return ``[nll, foreseen]`` of each window, or the loss by position, with the encoding set to the length."""
    pairs = [(texts[job.source][at].ids, window) for at, window in job.windows]
    with used_at(model, job.length):
        if job.spans:
            assert scoring.spans is not None
            ids_1T = losses.sequence(*pairs[0], scoring.begin)[None]
            spans = losses.score_spans(model, ids_1T, scoring.spans, chunk)
            exact.require_numbers(spans.nll, model)
            return spans.to_dict()
        scored = losses.score_windows(model, pairs, begin=scoring.begin, batch=batch, chunk=chunk)
    exact.require_numbers([loss.nll for loss in scored], model)
    return [(loss.nll, loss.foreseen) for loss in scored]


def figures(
    texts: Texts, lengths: Sequence[int], scoring: Scoring, jobs: Jobs, found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all figures except the cost; ``found`` has the results of :func:`work` by job."""
    entries = []
    by_position: dict[str, Any] = {}
    for source, parts in texts.items():
        for length in sorted(lengths):
            by_text: list[list[WindowLoss]] = [[] for _ in parts]
            reach = np.zeros(len(parts), np.int64)
            for key, job in jobs.items():
                if (job.source, job.length, job.spans) != (source, length, False):
                    continue
                for (at, window), (nll, foreseen) in zip(job.windows, found[key], strict=True):
                    by_text[at].append(WindowLoss(nll, foreseen, window.targets))
                    reach[at] = max(reach[at], window.end)
            left_out = []
            shorter = []
            unread = -int(reach.sum())
            for text, scored in zip(parts, by_text, strict=True):
                unread += len(text.ids)
                if not scored:
                    left_out.append(text.name)
                elif len(text.ids) < scoring.room(length):
                    shorter.append(text.name)
            # blocks do not overlap
            stride = scoring.stride if scoring.convention != "blocks" else length
            entries.append(
                {
                    "source": source,
                    "convention": scoring.convention,
                    "length": length,
                    "stride": stride,
                    "bos": scoring.begin is not None,
                    **pool(by_text),
                    "shorter": {"documents": len(shorter), "names": shorter[:NAMED]},
                    "left_out": {
                        "documents": len(left_out),
                        "names": left_out[:NAMED],
                        "tokens": unread,
                    },
                }
            )
        if scoring.spans is not None:
            spans: defaultdict[int, list[SpanLosses]] = defaultdict(list)
            for key, job in jobs.items():
                if job.spans and job.source == source:
                    spans[job.windows[0][0]].append(SpanLosses.from_dict(found[key]))
            by_position[source] = {}
            for at in sorted(spans):
                by_position[source][parts[at].name] = SpanLosses.merge(spans[at]).to_dict()
    documents = {source: len(parts) for source, parts in texts.items()}
    return {"perplexity": entries, "loss_by_position": by_position, "documents": documents}


def pool(documents: Iterable[Sequence[WindowLoss]]) -> dict[str, Any]:
    """Combine the windows of each document; every target weighs the same. The sums are exact, so neither order nor
    grouping matters.

    The standard error of ``nll`` treats documents as the sample, since windows of one document are alike, and the mean
    as a ratio of two sums over them (Cochran, Sampling Techniques, 1977, section 2.11, with n - 1 degrees of freedom);
    None for fewer than two.
    """
    scored = list(filter(None, documents))
    windows = list(itertools.chain.from_iterable(scored))
    targets = sum(window.targets for window in windows)
    if targets == 0:
        raise ValueError("no window has a target")
    nll = math.fsum(window.nll for window in windows) / targets
    error = None
    count = len(scored)
    if count > 1:
        squares = []
        for document in scored:
            deviation = math.fsum(window.nll - nll * window.targets for window in document)
            squares.append(deviation * deviation)
        error = math.sqrt(math.fsum(squares) * count / (count - 1)) / targets
    return {
        "nll": nll,
        "perplexity": losses.exp(nll),
        "standard_error": error,
        # tokens that were the most likely ones
        "accuracy": sum(window.foreseen for window in windows) / targets,
        "targets": targets,
        "windows": len(windows),
        "documents": count,
    }
