"""The texts that perplexity is scored on: token ids of documents, mapped from the cache and not copied."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tape_ds import storage
from tape_ds.data import prompting, selection, tokenized
from tape_ds.data.sources import Source
from tape_ds.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ScoredText:
    """A text that windows are cut from."""

    name: str
    ids: np.ndarray
    """int32 [n]; of a single document mapped from the disk."""
    stream: bool
    """Whether it consists of several documents, so that its beginning is not a document's."""


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
    """Return the texts of one source; they are tokenised once and cached. Tokens that the tokenizer appends to every
    text are removed.

    Args:
        source: of the documents.
        tokenizer: of the model.
        split: of sources that have splits.
        min_tokens: shorter documents are left out; what ``bare`` removes does not count.
        max_tokens: documents are cut to this length.
        max_documents: the first ones that are long enough.
        join: number of consecutive documents that make one text; None: each is one.
        bare: remove a document's own BOS and EOS.
    """
    begin, end = (0, 0) if source.tokenised else prompting.around(tokenizer)
    least = min_tokens + end + (begin if bare else 0)
    cache = storage.cache_home() / "data"
    try:
        selected = selection.select(
            [source.spec], tokenizer, split, cache, min_tokens=least, max_documents=max_documents
        )
    except UserError as error:  # with the names of this command's options
        named = (problem.remedy.replace("min_document_tokens", "--min_tokens") for problem in error.problems)
        raise UserError(
            replace(problem, field=source.field, remedy=remedy)
            for problem, remedy in zip(error.problems, named, strict=True)
        ) from error

    texts = []
    seen: dict[str, int] = {}
    for batch in selected.documents.with_format("arrow").iter(batch_size=64):
        names, rows = batch.column("name").to_pylist(), batch.column("input_ids").combine_chunks()
        for name, row in zip(names, rows, strict=True):
            seen[name] = seen.get(name, 0) + 1
            unique = name if seen[name] == 1 else f"{name} ({seen[name]})"
            ids = row.values.to_numpy()
            ids = ids[: len(ids) - end]
            ids = tokenized.without_ends(ids, tokenizer) if bare else ids
            texts.append(ScoredText(unique, ids[:max_tokens], source.stream))
    if join is None:
        return texts
    return [_join(texts[at : at + join]) for at in range(0, len(texts), join)]


def _join(texts: Sequence[ScoredText]) -> ScoredText:
    name = texts[0].name if len(texts) == 1 else f"{texts[0].name} to {texts[-1].name}"
    return ScoredText(name, np.concatenate([text.ids for text in texts]), stream=True)
