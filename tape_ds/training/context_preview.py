"""The left context of targets in a sample of a recipe's data, for a dry run: little is read and nothing is stored.

A run measures the same on its first sequences, which are drawn from all of its data
(:func:`tape_ds.data.left_context.measure`); here they are made of the first documents of each source.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from tape_ds import paths
from tape_ds.config.reading import DocumentReading
from tape_ds.config.recipe import Recipe
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.left_context import Buckets, ExactWeights, Histogram, contexts_of
from tape_ds.data.order import item, packed_item
from tape_ds.data.pack import FILL
from tape_ds.data.pose import PoseSequences
from tape_ds.data.retrieval.documents import DocumentWriter
from tape_ds.data.retrieval.sequences import RetrievalForm, RetrievalSequences
from tape_ds.data.selection import with_copies
from tape_ds.data.sources import TokenSource, generated, parse_all, weights
from tape_ds.data.tokenized import FIELD_OF, checked_ids, encode, made_for
from tape_ds.errors import UserError
from tape_ds.models.files.config_file import SMOLLM2

SEQUENCES = 32
"""Windows of text that are read of each source; with PoSE documents."""


def lines(recipe: Recipe) -> dict[str, str]:
    """Return lines of a plan about the weights of targets; none where all count the same."""
    chosen = recipe.weighting
    window = recipe.window
    if chosen.target_weights == "equal":
        return {}
    return {"target weights": chosen.outline(window), "left context": _left_context(recipe)}


def _left_context(recipe: Recipe) -> str:
    chosen = recipe.weighting
    window = recipe.window
    is_exact = chosen.target_weights == "exact"
    first = chosen.tail(window) if is_exact else min(chosen.longce_short, window)
    buckets = Buckets(first, chosen.exact_ratio)
    reading = recipe.reading
    lacking = "its sequences have answers as targets"
    tokenizer = None
    if reading is not None:
        tokenizer, lacking = local_tokenizer(reading)
    if reading is None or tokenizer is None:
        return f"shown when the run has read its data ({lacking})"
    specs = weights.specs_of(recipe.data.train_data)
    shares = weights.shares_of(recipe.data.train_data)
    parts = []
    try:
        for number, spec in enumerate(specs):
            found = list(_sample(recipe, reading, spec, tokenizer))
            tokens = sum(len(each["input_ids"]) for each in found)
            contexts = np.concatenate([np.zeros(0, np.int64), *map(contexts_of, found)])
            # shares are of tokens; without weights a source's size decides it, which is not known here
            share = 1 / len(specs) if shares is None else shares[number]
            parts.append((contexts, share * 1e6 / max(1, tokens)))
    except UserError as error:
        return f"not known: {'; '.join(problem.wrong for problem in error.problems)}"
    histogram = Histogram.of(parts, buckets)
    sampled = f"the first {SEQUENCES} {'documents' if reading.skips else 'windows'} of each source"
    if not is_exact:
        return f"{histogram}, in {sampled}"
    try:
        found_weights = ExactWeights.measured(
            histogram, buckets, chosen.exact_extra, len(specs) * SEQUENCES
        )
    except UserError as error:
        return f"{histogram}, in {sampled}; THE RUN WOULD BE REFUSED if all are so: {error.problems[0].wrong}"
    return f"{histogram}, in {sampled}; about these weights: {found_weights.described()}"


def local_tokenizer(reading: DocumentReading) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer where it is on this machine; else None, and why it is not known."""
    name = reading.tokenizer
    if name is None:
        return None, "its tokenizer is trained first"
    if name != SMOLLM2:
        name = str(paths.of(name))
        if not Path(name).exists():
            return None, "its tokenizer is not on this machine"
    try:
        return tokenizers.load_tokenizer(name), ""
    except UserError as error:
        return None, error.problems[0].wrong


def _sample(
    recipe: Recipe, reading: DocumentReading, spec: str, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Any]:
    """Yield sequences of a source's first documents, packed as the run packs them."""
    window = recipe.window
    made = generated.only_one([spec])
    if made is not None:
        yield from _generated(recipe, reading, made, tokenizer)
        return
    documents = _documents(spec, tokenizer, recipe.data.skip.bad_rows, reading.min_document_tokens)
    if reading.skips:
        read = list(islice(documents, SEQUENCES))
    else:
        read = list(_first(documents, SEQUENCES * window))
    read = [
        read[number]
        for number in with_copies(np.array([len(ids) for ids in read], np.int64), reading.upsample)
    ]
    # whatever is skipped, a target sees the tokens of its window
    if reading.skips:
        for ids in read:
            yield item(ids[:window], slice(1, None))
        return
    # all that is read is packed, since long documents leave a packing first
    for sequence in FILL[reading.packing](read, window):
        yield packed_item(sequence, reading.attend_across)


def _generated(
    recipe: Recipe,
    reading: DocumentReading,
    source: generated.GeneratedDocuments,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[Any]:
    """Yield generated sequences, with records in place of the text that a run puts between them: as long as that."""
    if not tokenizer.is_fast:  # the run refuses it
        return
    pose = None
    if reading.skips:
        pose = PoseSequences(recipe.window, recipe.model.target_length, reading.pose)
    form = RetrievalForm(recipe.window, pose, reading.packing == "single", reading.attend_across)
    writer = DocumentWriter(replace(source.options, text=None), tokenizer, None, None)
    sequences = RetrievalSequences(
        source, writer, form, samples=SEQUENCES, seed=recipe.trainer.seed
    )
    yield from (sequences[index] for index in range(SEQUENCES))


def _first(documents: Iterator[np.ndarray], tokens: int) -> Iterator[np.ndarray]:
    """Yield documents until they have as many tokens together; the last one is cut."""
    for ids in documents:
        yield ids[:tokens]
        tokens -= len(ids)
        if tokens <= 0:
            return


def _documents(spec: str, tokenizer: Any, skip_bad_rows: int, least: int) -> Iterator[np.ndarray]:
    (source,) = parse_all([spec], FIELD_OF["train"], BadRows(skip_bad_rows))
    if isinstance(source, TokenSource):
        made_for(source, tokenizer)
        for name, ids in source.token_rows():
            if len(ids) >= least:
                yield checked_ids(source, name, ids, len(tokenizer))
        return
    for _, ids in encode(source.documents("train"), tokenizer):
        if len(ids) >= least:
            yield ids
