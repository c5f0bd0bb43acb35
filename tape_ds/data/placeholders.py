"""Refuse data with tokens that stand for pictures or sound.

A model around a text decoder puts what it sees or hears in the places of such tokens, or begins and ends it with them:
their rows are no text's. Readers of data get a tokenizer and no model, so the tokenizer knows them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds import building, storage
from tape_ds.data import cache
from tape_ds.data.sources import Source
from tape_ds.errors import UserError
from tape_ds.models.loading.wrapper import PLACEHOLDERS

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

# Part of a key: raise it when the code below finds others.
FORMAT = 1


def mark(tokenizer: "PreTrainedTokenizerBase", config: "PreTrainedConfig") -> None:
    """Let a tokenizer know the placeholders of the model that it is used with."""
    setattr(tokenizer, PLACEHOLDERS, getattr(config, PLACEHOLDERS, {}))


def of(tokenizer: Any) -> Mapping[str, list[int]]:
    """Return the tokens that stand for pictures or sound, by the field of the configuration that has them."""
    known: Mapping[str, list[int]] = getattr(tokenizer, PLACEHOLDERS, {})
    return known


def part_of_key(tokenizer: Any) -> dict[str, Any]:
    """Return what a key of cached token ids has besides: rows with placeholders are not among them."""
    return {PLACEHOLDERS: of(tokenizer)} if of(tokenizer) else {}


def problem(name: str, ids: np.ndarray, tokenizer: Any) -> tuple[str, str] | None:
    """Return what is wrong with a text's ids [n], and the remedy; None: it has no placeholder."""
    for field, tokens in of(tokenizer).items():
        for token in tokens:
            if (ids == token).any():
                text = tokenizer.decode([token])
                wrong = f"{name} has the token {text!r} ({token:,}), which stands for pictures or sound "
                wrong += f"in the model around the decoder ({field})"
                return wrong, f"take {text!r} out of that text"
    return None


def require_none(source: Source, name: str, ids: np.ndarray, tokenizer: Any) -> None:
    """Raise UserError if the stored ids [n] of a document have a placeholder."""
    found = problem(name, ids, tokenizer)
    if found is not None:
        raise UserError(source.problem(found[0], f"{found[1]}, and tokenise it again"))


def leave_out(source: Source, name: str, ids: np.ndarray, tokenizer: Any) -> bool:
    """Return whether a text is left out because its ids [n] have a placeholder. Raises UserError: none may be left out,
    or no more."""
    found = problem(name, ids, tokenizer)
    if found is None:
        return False
    source.leave_out(*found)
    return True


def check_stored(documents: "Dataset", source: Source, tokenizer: Any, cache_dir: Path) -> None:
    """Raise UserError for the first document of a prepared folder that has a placeholder. The folder is read once;
    afterwards the cache knows that it has none."""
    if not of(tokenizer):
        return
    tokens = sorted({token for tokens in of(tokenizer).values() for token in tokens})

    def build(folder: Path) -> None:
        first = _first_with(documents, np.array(tokens))
        if first is not None:
            row = documents[first]
            require_none(source, row["name"], np.asarray(row["input_ids"]), tokenizer)
        folder.mkdir()
        storage.write_json(folder / "without.json", tokens)

    key = cache.key("without", format=FORMAT, source=source.fingerprint(), tokens=tokens)
    building.folder(cache_dir, key, build)


def _first_with(documents: "Dataset", tokens: np.ndarray) -> int | None:
    """Return the number of the first document that has one of the tokens [k]."""
    before = 0
    for chunk in documents.data.column("input_ids").chunks:
        found = np.isin(chunk.flatten().to_numpy(zero_copy_only=False), tokens)
        if found.any():
            ends = chunk.offsets.to_numpy()[1:] - chunk.offsets[0].as_py()
            return before + int(np.searchsorted(ends, found.argmax(), side="right"))
        before += len(chunk)
    return None
