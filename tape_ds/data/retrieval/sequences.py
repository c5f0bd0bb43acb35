"""Training sequences of generated documents, drawn on demand: sequence ``i`` is a pure function of (seed, i)."""

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tape_ds.data.bad_rows import BadRows
from tape_ds.data.order import RETRIEVAL_DRAWS, RunSamples, generator, item
from tape_ds.data.pose import PoseSequences
from tape_ds.data.retrieval.documents import DocumentWriter, NoRoomError, RetrievalDocument
from tape_ds.data.retrieval.haystack import Haystack
from tape_ds.data.selection import select
from tape_ds.data.sources.generated import GeneratedDocuments
from tape_ds.errors import UserError

_MEASURED = 16
"""Sequences that a run describes, and over which the mean length is taken."""
_TRIED = 12
"""Documents of each family that the least length is measured on."""


@dataclass(frozen=True)
class RetrievalForm:
    """How documents become the sequences of a run.

    Args:
        window: tokens of a sequence, at most.
        pose: one document a sequence, whose positions skip between what is asked for and the questions.
        single: one document a sequence also without ``pose``.
        attend_across: treat a sequence as one document.
    """

    window: int
    pose: PoseSequences | None = None
    single: bool = False
    attend_across: bool = False


def writer_of(
    source: GeneratedDocuments,
    tokenizer: Any,
    cache_dir: str | Path,
    bad_rows: BadRows | None = None,
    end: int | None = None,
    split: str = "train",
) -> DocumentWriter:
    """Return the writer of a source's documents, whose text is tokenised into ``cache_dir`` once.

    ``end`` is a token after each document. Raises :class:`UserError`.
    """
    options = source.options
    if not tokenizer.is_fast:
        wrong = "the tokenizer does not locate its tokens in a text, and answers are located"
        raise UserError(source.problem(wrong, "give a model with tokenizer.json, or other data"))
    haystack = None
    if options.text is not None:
        text = select([options.text], tokenizer, split, cache_dir, bad_rows=bad_rows)
        haystack = Haystack(text.documents, tokenizer)
        if not haystack.is_readable():
            reason = (
                "of its text the tokenizer gives back less than half: it has no tokens for the rest"
            )
            remedy = "write text=SPEC with data that the tokenizer was made for"
            raise UserError(source.problem(reason, remedy))
    return DocumentWriter(options, tokenizer, haystack, end)


class RetrievalSequences(RunSamples):
    """A run's samples; items as of :class:`tape_ds.data.order.TrainingSequences`, but for the targets.

    A sequence has as many whole documents as fit it, none is cut; where the last one ends before the window, it is
    shorter. Targets are the answers, or with ``targets=all`` every token but a document's first.
    """

    def __init__(
        self,
        source: GeneratedDocuments,
        writer: DocumentWriter,
        form: RetrievalForm,
        *,
        samples: int,
        seed: int,
    ):
        """Raises :class:`UserError`: a document has no room for the least that is asked of it."""
        self.source = source
        self.writer = writer
        self.form = form
        self.samples = samples
        self.seed = seed
        self.least = require_room(source, writer, form.window)

    def documents(self, index: int) -> list[RetrievalDocument]:
        """Return the documents of sequence ``index``."""
        return self._documents(generator(self.seed, RETRIEVAL_DRAWS, index))

    def draw(self, index: int) -> dict[str, torch.Tensor]:
        # a sequence follows from its index, on any rank and after any resume
        rng = generator(self.seed, RETRIEVAL_DRAWS, index)
        documents = self._documents(rng)
        parts = [document.ids for document in documents]
        ids = np.concatenate(parts)
        owners = np.repeat(np.arange(len(documents)), list(map(len, parts)))
        if self.form.attend_across:
            owners = np.zeros_like(owners)
        if self.source.options.targets == "answers":
            targets = np.flatnonzero(np.concatenate([document.is_answer for document in documents]))
        else:
            targets = np.flatnonzero(np.diff(owners) == 0) + 1
        positions = None
        if self.form.pose is not None:
            lengths = chunk_lengths(documents[0], self.form.pose.pose.chunks, rng)
            positions = self.form.pose.positions(lengths, rng)
        return item(ids, targets, positions, owners)

    def _documents(self, rng: np.random.Generator) -> list[RetrievalDocument]:
        form = self.form
        tokens = self.source.options.tokens
        least, most = tokens or (form.window, form.window)
        documents: list[RetrievalDocument] = []
        room = form.window
        while room >= self.least:
            length = min(room, int(rng.integers(least, most, endpoint=True)))
            try:
                documents.append(self.writer.write(rng, length))
            except NoRoomError:
                if not documents:
                    # far more tokens than any that the least length was measured on
                    continue
                break
            room -= len(documents[-1].ids)
            if form.single or form.pose is not None:
                break
        return documents

    @functools.cached_property
    def mean_tokens(self) -> float:
        return sum(len(document.ids) for document in self._measured) / _MEASURED

    @functools.cached_property
    def _measured(self) -> list[RetrievalDocument]:
        """The documents of the first sequences."""
        return list(itertools.chain.from_iterable(map(self.documents, range(_MEASURED))))

    @property
    def origin(self) -> str:
        """What a sequence has on average, for reports."""
        documents = self._measured
        answers = sum(int(document.is_answer.sum()) for document in documents) / _MEASURED
        targets = f"{answers:,.0f} of {self.mean_tokens:,.0f} tokens are answers"
        if self.source.options.targets == "all":
            targets += ", all are targets"
        rivals = np.mean([document.rivals for document in documents])
        asked = sum(len(document.answers) for document in documents) / _MEASURED
        return (
            f"drawn for each sequence: {len(documents) / _MEASURED:.3g} documents, {asked:.3g} questions, "
            f"{rivals:,.3g} rivals a document, {targets}"
        )


def chunk_lengths(document: RetrievalDocument, chunks: int, rng: np.random.Generator) -> np.ndarray:
    """Return the lengths of PoSE's chunks, int64 [chunks], fewer where the document has fewer borders.

    One chunk begins between the last record that is asked for and the questions, so that every question is a skip
    away from what it asks for; the others begin at any line, record or question.
    """
    borders = document.borders
    between = borders[(borders >= document.evidence) & (borders <= document.asked_at)]
    first = int(between[rng.integers(len(between))])
    others = borders[borders != first]
    more = rng.choice(others, min(chunks - 2, len(others)), replace=False)
    cuts = np.sort([first, *more])
    return np.diff([0, *cuts, len(document.ids)]).astype(np.int64)


def require_room(source: GeneratedDocuments, writer: DocumentWriter, window: int) -> int:
    """Return the fewest tokens of a document that the least questions and rivals fit; raise :class:`UserError` where
    documents may be shorter."""
    options = source.options
    questions = options.questions[0]
    rivals = 1 if options.text is None else options.rivals[0]
    rng = np.random.default_rng(0)
    needed = 0
    for family, _ in itertools.product(writer.names, range(_TRIED)):
        needed = max(needed, writer.needed(rng, family, questions, rivals))
    least = needed + needed // 8 + 8
    shortest = window if options.tokens is None else options.tokens[0]
    if shortest >= least:
        return least
    wrong = f"{questions} questions, their records and {rivals} rivals have up to {least:,} tokens"
    if window < least:
        wrong += f", more than a sequence of {window:,}"
        remedy = f"ask for less: fewer questions= or rivals=, other families=; or window: {least}"
    else:
        wrong += f", and a document may have {shortest:,}"
        remedy = f"write tokens={least}-{window}, or ask for less: fewer questions= or rivals=, other families="
    raise UserError(source.problem(wrong, remedy))
