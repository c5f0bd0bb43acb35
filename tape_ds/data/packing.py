"""Tokenise once, cut sequences once, and read both memory-mapped from then on.

:func:`tokenize` gives one row per document, :func:`pack` the training sequences made from them. Both are
``datasets.Dataset`` folders below a cache folder (:mod:`tape_ds.data.cache`), named after a hash of everything that
decides their contents: the sources' fingerprints, the tokenizer's, the settings, and :data:`FORMAT`.

**Special tokens.** A document is encoded exactly as ``tokenizer(text)`` does it, the tokenizer's own convention: Llama
begins each with BOS and ends it with nothing, SmolLM2 adds neither. A BOS that a text begins with itself is not put
before it again. No EOS is appended, so training and scoring see the same ids for the same text; borders between packed
documents are carried by ``document_ids``, not by a token.
:func:`pack` adds one behind each document where it is asked to.
"""

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds import building, storage
from tape_ds.data import cache
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows, SourceBadRows
from tape_ds.data.prompting import appended
from tape_ds.data.sequences import FILL, Packing, ended
from tape_ds.data.sources import ArrowFolder, Document, Source, TokenSource, parse_all
from tape_ds.errors import Problem, UserError, raise_if_any

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


def tokenize(
    specs: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    split: str,
    cache_dir: str | Path,
    bad_rows: BadRows | None = None,
) -> "Dataset":
    """Token ids of every document behind ``specs``, in their order; each spec has a cache folder of its own.

    Args:
        specs: see :mod:`tape_ds.data.sources`. ``arrow:`` rows and a ``bin:`` file pass through, each as one
            document, once their ids are known to lie in the tokenizer's vocabulary. A folder of
            ``tape-ds prepare-data`` is read where it lies, once it is known to be whole and of this tokenizer.
        tokenizer: any of transformers; with its own special tokens, never truncating.
        split: ``"train"`` or ``"heldout"``.
        cache_dir: made if it is not there.
        bad_rows: what happens to rows that cannot be read; by default the first is refused.

    Returns:
        Rows ``{name: string, input_ids: list<int32>}``.

    Raises:
        UserError: a spec or its data.
    """
    from datasets import concatenate_datasets

    bad_rows = bad_rows or BadRows()
    sources = parse_all(specs, FIELD_OF[split], bad_rows)
    identity = tokenizer_fingerprint(tokenizer)
    return concatenate_datasets(
        [tokenized(each, tokenizer, identity, split, Path(cache_dir), bad_rows) for each in sources]
    )


def scored_rows(
    specs: Sequence[str], tokenizer: "PreTrainedTokenizerBase", cache_dir: str | Path, bad_rows: BadRows | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of :func:`tokenize` for held-out documents, without the end that a tokenizer appends to every
    text: it is no part of the text that is scored."""
    bad_rows, identity = bad_rows or BadRows(), tokenizer_fingerprint(tokenizer)
    for source in parse_all(specs, FIELD_OF["heldout"], bad_rows):
        added = 0 if source.tokenised else appended(tokenizer)
        for row in tokenized(source, tokenizer, identity, "heldout", Path(cache_dir), bad_rows):
            yield {**row, "input_ids": row["input_ids"][: len(row["input_ids"]) - added]}


def pack(
    documents: "Dataset",
    length: int,
    cache_dir: str | Path,
    packing: Packing = "cut",
    end: int | None = None,
    *,
    specs: Sequence[str] = (),
) -> "Dataset":
    """Return sequences of at most ``length`` tokens, filled with ``documents`` as :mod:`tape_ds.data.sequences` has it.

    Args:
        documents: with a column ``input_ids``; their order is kept.
        length: tokens per sequence, 2 or more.
        cache_dir: as for :func:`tokenize`; keyed by the dataset's own fingerprint and the other arguments.
        packing: a name of :data:`tape_ds.data.sequences.FILL`. Only the sequences of ``whole`` may be shorter than
            ``length``.
        end: a token put behind each document; None: no token.
        specs: what the documents are of, for messages.

    Returns:
        Rows ``{input_ids: list<int32>, document_ids: list<int32>}``.

    Raises:
        UserError: the documents do not fill one sequence.
    """
    from datasets import Features, List, Value

    column = List(Value("int32"), -1 if packing == "whole" else length)
    features = Features({"input_ids": column, "document_ids": column})
    key = cache.key("rows", format=FORMAT, documents=documents._fingerprint, length=length, packing=packing, end=end)
    of = f" of {', '.join(specs)}" * bool(specs)
    wrong = f"no document{of} alone fills" if packing == "single" else f"not even all documents{of} together fill"
    too_few = Problem("window", length, f"{wrong} a sequence", "name more data, or make the window smaller")

    def rows() -> Iterator[dict[str, Any]]:
        batches = documents.with_format("arrow", columns=["input_ids"]).iter(batch_size=64)
        arrays = (row.values.to_numpy() for batch in batches for row in batch.column("input_ids").combine_chunks())
        return some(FILL[packing](arrays if end is None else ended(arrays, end), length), too_few)

    return cached(Path(cache_dir), key, features, rows)


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Hash of what decides the ids: the backend's own JSON, the special tokens and whether they are added.

    Truncation and padding are left out: every call sets them anew, so that they tell of the last call, not of the
    tokenizer.
    """
    settings = {
        "class": type(tokenizer).__name__,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "bos": getattr(tokenizer, "add_bos_token", None),
        "eos": getattr(tokenizer, "add_eos_token", None),
        "split_special": getattr(tokenizer, "split_special_tokens", False),
        "added": sorted((index, str(token)) for index, token in tokenizer.added_tokens_decoder.items()),
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        settings["backend"] = {name: part for name, part in state.items() if name not in {"truncation", "padding"}}
    else:
        with tempfile.TemporaryDirectory() as folder:
            settings["files"] = [storage.digest(Path(path)) for path in sorted(tokenizer.save_vocabulary(folder))]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def tokenized(
    source: Source,
    tokenizer: "PreTrainedTokenizerBase",
    identity: str,
    split: str,
    cache_dir: Path,
    bad_rows: BadRows,
) -> "Dataset":
    """Return the documents of one source: a prepared folder as it lies there, all else from the cache."""
    from datasets import load_from_disk

    if isinstance(source, TokenSource):
        raise_if_any(source.check_tokenizer(identity))
    if isinstance(source, ArrowFolder) and source.prepared:
        return load_from_disk(str(source.folder))
    once = {"begin": "once"} if tokenizers.begins(tokenizer) is not None and not source.tokenised else {}
    own = source.bad_rows = SourceBadRows(bad_rows, source.field, source.spec)

    def name() -> str:
        data = source.fingerprint()
        return cache.key("documents", format=FORMAT, source=data, split=split, tokenizer=identity, **once)

    def rows() -> Iterator[dict[str, Any]]:
        if isinstance(source, TokenSource):
            found = _checked_rows(source, len(tokenizer))
        else:
            found = encoded_rows(source.documents(split), tokenizer)
        return some(found, source.problem("no document has any token", "name data that hold text"))

    return cached(cache_dir, cache.known(cache_dir, name), document_features(), rows, own)


def document_features() -> "Features":
    """Return columns of tokenised documents."""
    from datasets import Features, List, Value

    return Features({"name": Value("string"), "input_ids": List(Value("int32"))})


def some(rows: Iterator[dict[str, Any]], none: Problem) -> Iterator[dict[str, Any]]:
    """``rows``, or the error ``none`` if there is not one: an empty folder in the cache is of no use."""
    first = next(rows, None)
    if first is None:
        raise UserError(none)
    yield first
    yield from rows


def encode(
    documents: Iterable[Document], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[tuple[Document, np.ndarray]]:
    """Yield every document with its token ids, int32 [n], n = 0 included; read and encoded in batches, in their
    order. A BOS that the tokenizer puts before every text is there once, also if the text begins with it."""
    begin, doubled = tokenizers.begins(tokenizer), 0
    for batch in _batches(documents):
        # verbose=False: no advice about the native length, which these documents are meant to exceed
        encoded = tokenizer([document.text for document in batch], return_attention_mask=False, verbose=False)
        # arrays at once: a stream may rest in the middle of a batch, and the tokenizer's own answer is far larger
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
    """Return a document's ids without the BOS and EOS that the tokenizer put around them, if it did."""
    first = int(len(ids) > 0 and ids[0] == tokenizer.bos_token_id)
    last = int(len(ids) > first and ids[-1] == tokenizer.eos_token_id)
    return ids[first : len(ids) - last]


def encoded_rows(documents: Iterable[Document], tokenizer: "PreTrainedTokenizerBase") -> Iterator[dict[str, Any]]:
    """Yield rows of tokenised documents, those without a token left out."""
    for document, ids in encode(documents, tokenizer):
        if len(ids):
            yield {"name": document.name, "input_ids": ids}


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
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


def _checked_rows(source: TokenSource, vocabulary: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of token ids, each known to fit a vocabulary of that size."""
    for name, ids in source.token_rows():
        if len(ids) == 0:
            continue
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= vocabulary:
            wrong = f"{name} has token ids {lowest} .. {highest}, outside the tokenizer's vocabulary of {vocabulary}"
            raise UserError(source.problem(wrong, "tokenise the text anew with this model's tokenizer"))
        yield {"name": name, "input_ids": ids.astype(np.int32)}


def cached(
    cache_dir: Path,
    key: str,
    features: "Features",
    rows: Callable[[], Iterator[dict[str, Any]]],
    bad_rows: SourceBadRows | None = None,
) -> "Dataset":
    """Return the rows of ``rows()``, read from their folder in the cache; ``bad_rows`` counts what they leave out."""
    from datasets import load_from_disk

    folder = building.folder if bad_rows is None else partial(cache.folder_with_record, bad_rows)
    return load_from_disk(str(folder(cache_dir, key, partial(write, key, features, rows))))


def write(key: str, features: "Features", rows: Callable[[], Iterator[dict[str, Any]]], folder: Path) -> None:
    """Write the rows of ``rows()`` into a new folder, ``key`` as their fingerprint."""
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        work = str(folder.with_name("work"))
        built = Dataset.from_generator(rows, features=features, cache_dir=work, fingerprint=key)
    except DatasetGenerationError as error:  # the library hides what the generator raised
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise
    built.save_to_disk(str(folder))
