"""Tokenise once, cut rows once, and read both memory-mapped from then on.

:func:`tokenize` gives one row per document, :func:`pack` rows of equal length made from them. Both are
``datasets.Dataset`` folders below a cache folder, named after a hash of everything that decides their contents: the
sources' fingerprints, the tokenizer's, the settings, and :data:`FORMAT`. A second run finds the folder and neither
reads nor tokenises, and several processes may ask at once (:mod:`tape_ds.data.cache`).

Nothing here knows of ranks: the rows are the same whatever their number.

**Special tokens.** A document is encoded exactly as ``tokenizer(text)`` does it, the tokenizer's own convention: Llama
begins each with BOS and ends it with nothing, SmolLM2 adds neither. No EOS is appended, so training and scoring see
the same ids for the same text; borders between packed documents are carried by ``document_ids``, not by a token.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds.data import cache
from tape_ds.data.sources import SPLITS, ArrowFolder, Document, Source, parse_all
from tape_ds.errors import Problem, UserError

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from transformers import PreTrainedTokenizerBase

# Part of every key: raise it when the code below gives other rows for the same input.
FORMAT = 1

# A batch of texts for the tokenizer ends at either; the ids do not depend on it.
_BATCH_DOCUMENTS = 256
_BATCH_CHARACTERS = 2**21

FIELD_OF = {"train": "train_data", "heldout": "eval_data"}


def tokenize(
    addresses: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    split: str,
    cache_dir: str | Path,
    min_tokens: int = 1,
) -> "Dataset":
    """Token ids of every document behind ``addresses``, in their order; each address has a cache folder of its own.

    Args:
        addresses: see :mod:`tape_ds.data.sources`. ``arrow:`` rows pass through, each as one document, once their ids
            are known to lie in the tokenizer's vocabulary. A folder of ``tools/prepare_data.py`` is read where it lies,
            once it is known to be whole and of this tokenizer.
        tokenizer: any of transformers; with its own special tokens, never truncating.
        split: ``"train"`` or ``"heldout"``.
        cache_dir: made if it is not there.
        min_tokens: shorter documents are left out (not part of the cache key).

    Returns:
        Rows ``{name: string, input_ids: list<int32>}``.

    Raises:
        UserError: an address, its data, or nothing left of them.
        ValueError: an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split = {split!r}: one of {', '.join(SPLITS)}")
    from datasets import concatenate_datasets

    sources = parse_all(addresses, FIELD_OF[split])
    identity = tokenizer_fingerprint(tokenizer)
    parts = [_tokenized(source, tokenizer, identity, split, Path(cache_dir)) for source in sources]
    documents = concatenate_datasets(parts)
    kept = _long_enough(documents, min_tokens)
    if len(kept) == 0:
        wrong = f"none of {len(documents)} documents has {max(1, min_tokens)} tokens or more"
        remedy = "name longer documents, or lower min_document_tokens"
        raise UserError(Problem(FIELD_OF[split], list(addresses), wrong, remedy))
    return kept


def pack(documents: "Dataset", length: int, cache_dir: str | Path) -> "Dataset":
    """Rows of exactly ``length`` tokens: the documents one after another, cut without regard to their borders.

    ``document_ids`` count from 0 in each row and say which document a token is of; a document that is cut goes on in
    the next row as that row's document 0, without what came before. The last tokens, too few for a row, are dropped
    (fewer than ``length`` of the whole corpus): a padded row would weigh as much as a full one.

    Args:
        documents: with a column ``input_ids``; their order is kept.
        length: tokens per row, 2 or more.
        cache_dir: as for :func:`tokenize`; keyed by the dataset's own fingerprint and ``length``.

    Returns:
        Rows ``{input_ids: list<int32>[length], document_ids: list<int32>[length]}``.

    Raises:
        UserError: all documents together do not fill one row.
        ValueError: ``length`` below 2 (a row needs a token and its target).
    """
    from datasets import Features, List, Value

    if length < 2:
        raise ValueError(f"length = {length}: a row needs at least 2 tokens")
    features = Features({"input_ids": List(Value("int32"), length), "document_ids": List(Value("int32"), length)})
    key = cache.key("rows", format=FORMAT, documents=documents._fingerprint, length=length)
    wrong = "all documents together hold fewer tokens than one row"
    too_few = Problem("window", length, wrong, "name more data, or make the window smaller")

    def rows() -> Iterator[dict[str, Any]]:
        return _some(packed_rows(_token_arrays(documents), length), too_few)

    return _cached(Path(cache_dir), key, features, rows)


def packed_rows(documents: Iterable[np.ndarray], length: int) -> Iterator[dict[str, np.ndarray]]:
    """The rows of :func:`pack`, from token arrays [n_i], with nothing read or written."""
    ids, owners = np.empty(length, np.int32), np.empty(length, np.int32)
    filled = owner = 0
    for tokens in documents:
        at = 0
        while at < len(tokens):
            take = min(length - filled, len(tokens) - at)
            ids[filled : filled + take] = tokens[at : at + take]
            owners[filled : filled + take] = owner
            filled, at, owner = filled + take, at + take, owner + 1
            if filled == length:
                yield {"input_ids": ids.copy(), "document_ids": owners.copy()}
                filled = owner = 0


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
        settings["files"] = _vocabulary_files(tokenizer)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _vocabulary_files(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """Hashes of the files of a tokenizer without a fast backend."""
    with tempfile.TemporaryDirectory() as folder:
        paths = sorted(tokenizer.save_vocabulary(folder))
        return [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths]


def _tokenized(
    source: Source, tokenizer: "PreTrainedTokenizerBase", identity: str, split: str, cache_dir: Path
) -> "Dataset":
    """The documents of one source: a prepared folder as it lies there, all else from the cache."""
    if isinstance(source, ArrowFolder) and source.prepared:
        return source.load(identity)
    key = cache.key("documents", format=FORMAT, source=source.fingerprint(), split=split, tokenizer=identity)

    def rows() -> Iterator[dict[str, Any]]:
        if isinstance(source, ArrowFolder):
            found = _checked_rows(source, len(tokenizer))
        else:
            found = _encoded_rows(source.documents(split), tokenizer)
        return _some(found, source.problem("no document has any token", "name data that hold text"))

    return _cached(cache_dir, key, document_features(), rows)


def document_features() -> "Features":
    """Columns of tokenised documents."""
    from datasets import Features, List, Value

    return Features({"name": Value("string"), "input_ids": List(Value("int32"))})


def _some(rows: Iterator[dict[str, Any]], none: Problem) -> Iterator[dict[str, Any]]:
    """``rows``, or the error ``none`` if there is not one: an empty folder in the cache helps nobody."""
    first = next(rows, None)
    if first is None:
        raise UserError(none)
    yield first
    yield from rows


def encode(
    documents: Iterable[Document], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[tuple[Document, np.ndarray]]:
    """Every document with its token ids, int32 [n], n = 0 included; read and encoded in batches, in their order."""
    for batch in _batches(documents):
        yield from zip(batch, _encode_batch(batch, tokenizer), strict=True)


def _encode_batch(batch: list[Document], tokenizer: "PreTrainedTokenizerBase") -> list[np.ndarray]:
    """Arrays at once: a stream may rest in the middle of a batch, and the tokenizer's own answer is far larger."""
    # verbose=False: no advice about the native length, which these documents are meant to exceed.
    encoded = tokenizer([document.text for document in batch], return_attention_mask=False, verbose=False)
    return [np.asarray(ids, np.int32) for ids in encoded["input_ids"]]


def _encoded_rows(documents: Iterable[Document], tokenizer: "PreTrainedTokenizerBase") -> Iterator[dict[str, Any]]:
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


def _checked_rows(source: ArrowFolder, vocabulary: int) -> Iterator[dict[str, Any]]:
    """The rows of a tokenised folder, each known to fit a vocabulary of that size."""
    for name, ids in source.token_rows():
        if len(ids) == 0:
            continue
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= vocabulary:
            wrong = f"{name} has token ids {lowest} .. {highest}, outside the tokenizer's vocabulary of {vocabulary}"
            raise UserError(source.problem(wrong, "tokenise the text anew with this model's tokenizer"))
        yield {"name": name, "input_ids": ids.astype(np.int32)}


def _long_enough(documents: "Dataset", min_tokens: int) -> "Dataset":
    """Documents of ``min_tokens`` and more; lengths come from the list offsets, no token is read."""
    import pyarrow.compute

    lengths = pyarrow.compute.list_value_length(documents.data.column("input_ids")).to_numpy()
    kept = np.flatnonzero(lengths >= min_tokens)
    return documents if len(kept) == len(documents) else documents.select(kept)


def _token_arrays(documents: "Dataset") -> Iterator[np.ndarray]:
    for batch in documents.with_format("arrow", columns=["input_ids"]).iter(batch_size=64):
        for row in batch.column("input_ids").combine_chunks():
            yield row.values.to_numpy()


def _cached(cache_dir: Path, key: str, features: "Features", rows: Callable[[], Iterator[dict[str, Any]]]) -> "Dataset":
    """The rows of ``rows()``, read from their folder in the cache."""
    from datasets import load_from_disk

    return load_from_disk(str(cache.folder(cache_dir, key, partial(_write, key, features, rows))))


def _write(key: str, features: "Features", rows: Callable[[], Iterator[dict[str, Any]]], folder: Path) -> None:
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
