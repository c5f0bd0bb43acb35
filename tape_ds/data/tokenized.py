"""Documents tokenised once into a cache, and memory-mapped from then on.

Each data spec has a ``datasets.Dataset`` folder (:mod:`tape_ds.data.cache`), named after a hash of everything that
decides its contents: the source's fingerprint, the tokenizer's, the settings, and :data:`FORMAT`.

**Special tokens.** A document is encoded as ``tokenizer(text)`` does it, except that a BOS that the text itself begins
with is not doubled. No EOS is appended, so that training and scoring have the same ids for the same text
(:func:`tape_ds.data.pack.pack` adds an end on request).
"""

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds import storage
from tape_ds.data import cache, placeholders
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows, SourceBadRows
from tape_ds.data.prompting import around
from tape_ds.data.sources import ArrowFolder, Document, Source, TokenSource, parse_all
from tape_ds.data.sources.arrow import is_prepared
from tape_ds.errors import UserError, redacted
from tape_ds.mappings import without

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

# Part of every key: raise it when the code below gives other output for the same input.
FORMAT = 1

# A batch of texts for the tokenizer ends at either; the ids do not depend on it.
_BATCH_DOCUMENTS = 256
_BATCH_CHARACTERS = 2**21

FIELD_OF = {"train": "train_data", "heldout": "eval_data"}


def scored_rows(
    specs: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    cache_dir: str | Path,
    bad_rows: BadRows | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield ``{name, input_ids}`` of every held-out document of ``specs``, in their order, without the end that a
    tokenizer appends to every text: it is not scored."""
    identity = tokenizer_fingerprint(tokenizer)
    for source in parse_all(specs, FIELD_OF["heldout"], bad_rows):
        added = 0 if source.tokenised else around(tokenizer)[1]
        for row in tokenize_source(source, tokenizer, identity, "heldout", Path(cache_dir)):
            yield {**row, "input_ids": row["input_ids"][: len(row["input_ids"]) - added]}


def tokenize_source(
    source: Source, tokenizer: "PreTrainedTokenizerBase", identity: str, split: str, cache_dir: Path
) -> "Dataset":
    """Return the documents of one source: a prepared folder in place, all else from the cache."""
    from datasets import load_from_disk

    if isinstance(source, TokenSource):
        made_for(source, tokenizer)
    if isinstance(source, TokenSource) and source.recorded_tokenizer() not in (None, identity):
        remedy = "prepare the text again with this model's tokenizer, or give the model the tokenizer it was made with"
        raise UserError(source.problem("its token ids are those of another tokenizer", remedy))
    if isinstance(source, ArrowFolder) and is_prepared(source.path):
        documents = load_from_disk(str(source.path))
        placeholders.check_stored(documents, source, tokenizer, cache_dir)
        return documents
    # the key of a tokenizer with BOS changed when doubled ones were left out
    once = (
        {"begin": "once"}
        if tokenizers.begins(tokenizer) is not None and not source.tokenised
        else {}
    )
    source_bad_rows = source.bad_rows = SourceBadRows(source.bad_rows, source.field, source.spec)
    data = source.fingerprint()
    key = cache.key(
        "documents",
        format=FORMAT,
        source=data,
        split=split,
        tokenizer=identity,
        **once,
        **placeholders.part_of_key(tokenizer),
    )

    def token_rows() -> Iterator[dict[str, Any]]:
        if not isinstance(source, TokenSource):
            for document, ids in encode(source.documents(split), tokenizer):
                if len(ids) == 0 or placeholders.leave_out(source, document.name, ids, tokenizer):
                    continue
                yield {"name": document.name, "input_ids": ids}
            return
        for name, ids in source.token_rows():
            if len(ids) == 0:
                continue
            checked = checked_ids(source, name, ids, len(tokenizer))
            placeholders.require_none(source, name, checked, tokenizer)
            yield {"name": name, "input_ids": checked}

    none = source.problem("no document has any token", "name data that hold text")
    return cache.rows(cache_dir, key, document_features(), token_rows, source_bad_rows, none=none)


def made_for(source: TokenSource, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Tell a source of token ids the EOS of the tokenizer that its ids are read with, before they are read."""
    source.eos = tokenizer.eos_token_id
    recorded = source.made_with()
    if recorded not in (None, tokenizer.name_or_path):
        logger.warning(
            "%s: its ids were made with the tokenizer %s, as it records; they are read with %s",
            redacted(source.spec),
            recorded,
            tokenizer.name_or_path,
        )


def checked_ids(source: TokenSource, name: str, ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return the ids [n] of a document as int32; raise :class:`UserError` for ids that the tokenizer does not have."""
    lowest = int(ids.min())
    highest = int(ids.max())
    if lowest >= 0 and highest < vocabulary:
        return ids.astype(np.int32)
    outside = f"outside the tokenizer's vocabulary of {vocabulary}"
    wrong = f"{name} has token ids {lowest} .. {highest}, {outside}"
    raise UserError(source.problem(wrong, source.other_ids))


def document_features(ids: str = "int32") -> "Features":
    """Return the columns of documents whose token ids are of this type."""
    from datasets import Features, List, Value

    return Features({"name": Value("string"), "input_ids": List(Value(ids))})


def id_type(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the smallest type in which documents' folders store this tokenizer's ids."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    return "uint16" if largest < 2**16 else "int32"


def encode(
    documents: Iterable[Document], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[tuple[Document, np.ndarray]]:
    """Yield every document with its token ids, int32 [n], n >= 0, in order; read and encoded in batches.

    A BOS that the tokenizer puts before every text is there once, also if the text begins with it.
    """

    def batches() -> Iterator[list[Document]]:
        batch: list[Document] = []
        characters = 0
        for document in documents:
            batch.append(document)
            characters += len(document.text)
            if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch

    begin, doubled = tokenizers.begins(tokenizer), 0
    for batch in batches():
        # verbose=False: no warning about the native length, which these documents are meant to exceed
        encoded = tokenizer(
            [document.text for document in batch], return_attention_mask=False, verbose=False
        )
        # arrays at once: a stream may pause in the middle of a batch, and the tokenizer's own answer is far larger
        arrays = [np.asarray(ids, np.int32) for ids in encoded["input_ids"]]
        del encoded
        for document, ids in zip(batch, arrays, strict=True):
            again = len(ids) > 1 and ids[0] == ids[1] == begin
            doubled += again
            yield document, ids[1:] if again else ids
    if doubled:
        logger.warning(
            "%s documents begin with %s, and the tokenizer puts it before every text: one of the two is left out",
            f"{doubled:,}",
            tokenizer.bos_token,
        )


def without_ends(ids: np.ndarray, tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """Return a document's ids without a first BOS and a last EOS."""
    first = int(len(ids) > 0 and ids[0] == tokenizer.bos_token_id)
    last = int(len(ids) > first and ids[-1] == tokenizer.eos_token_id)
    return ids[first : len(ids) - last]


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Hash what decides the ids: the backend's JSON, the special tokens and whether they are added.

    Truncation and padding are left out: every call sets them.
    """
    settings = {
        "class": type(tokenizer).__name__,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "bos": getattr(tokenizer, "add_bos_token", None),
        "eos": getattr(tokenizer, "add_eos_token", None),
        "split_special": getattr(tokenizer, "split_special_tokens", False),
        "added": sorted(
            (index, str(token)) for index, token in tokenizer.added_tokens_decoder.items()
        ),
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # the caller sets these
        settings["backend"] = without(json.loads(backend.to_str()), ("truncation", "padding"))
    else:
        with tempfile.TemporaryDirectory() as folder:
            files = map(Path, sorted(tokenizer.save_vocabulary(folder)))
            settings["files"] = list(map(storage.digest, files))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
