"""The texts that perplexity is scored on: token ids of documents, read from where they are stored, not copied."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tape_ds import storage
from tape_ds.data import prompting, selection, tokenized
from tape_ds.data.sources import Source
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ScoredText:
    """What windows are cut from."""

    name: str
    ids: np.ndarray
    """int32 [n], mapped from the disk where it is one document."""
    stream: bool
    """Whether documents follow on one another in it, so that its beginning is no document's."""


def read(
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
    """Return the texts of one source; tokenised the first time, found in the cache from then on.

    What the tokenizer appends to every text is no part of it.

    Args:
        source: where documents are read.
        tokenizer: makes ids of them.
        split: of sources that have splits.
        min_tokens: documents with fewer are left out; what ``bare`` takes off does not count.
        max_tokens: documents are cut to this many.
        max_documents: the first so many that are long enough.
        join: so many documents one after another are one text; None: each is one.
        bare: a document's own BOS and EOS are taken off.

    Raises:
        UserError: the source's data, or nothing left of them.
    """
    begin, end = (0, 0) if source.tokenised else prompting.around(tokenizer)
    try:
        found = selection.select(
            [source.spec],
            tokenizer,
            split,
            storage.cache_home() / "data",
            min_tokens=min_tokens + end + (begin if bare else 0),
            max_documents=max_documents,
        )
    except UserError as error:
        raise UserError(_as_typed(error, source)) from error
    texts = []
    for name, ids in _documents(found.documents):
        own = ids[: len(ids) - end]
        own = tokenized.without_ends(own, tokenizer) if bare else own
        texts.append(ScoredText(name, own[:max_tokens], source.stream))
    if join is None:
        return texts
    return [_joined(texts[at : at + join]) for at in range(0, len(texts), join)]


def _as_typed(error: UserError, source: Source) -> Iterator[Problem]:
    """Its problems, by the names of this command's options."""
    for problem in error.problems:
        remedy = problem.remedy.replace("min_document_tokens", "--min_tokens")
        yield replace(problem, field=source.field, remedy=remedy)


def _documents(documents: "Dataset") -> Iterator[tuple[str, np.ndarray]]:
    """Name and ids of each; a name that was there before gets a number."""
    known: dict[str, int] = {}
    for batch in documents.with_format("arrow").iter(batch_size=64):
        names, rows = batch.column("name").to_pylist(), batch.column("input_ids").combine_chunks()
        for name, row in zip(names, rows, strict=True):
            known[name] = known.get(name, 0) + 1
            yield name if known[name] == 1 else f"{name} ({known[name]})", row.values.to_numpy()


def _joined(texts: Sequence[ScoredText]) -> ScoredText:
    """Return one text of several."""
    name = texts[0].name if len(texts) == 1 else f"{texts[0].name} to {texts[-1].name}"
    return ScoredText(name, np.concatenate([text.ids for text in texts]), stream=True)
