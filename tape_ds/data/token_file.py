"""``FILE.bin``: the token ids of a text one after another and nothing else, as LongLoRA's test sets have them.

Ids are unsigned and little-endian: 16 bits wide where the vocabulary allows, else 32. Nothing in the file says which,
nor whose ids they are, so what is written here gets a record beside it, ``FILE.bin.json``. A file without one is taken
for LongLoRA's: 16 bits, of whatever tokenizer it is read with.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds import storage
from tape_ds.errors import Problem, UserError, redacted

FORMAT = 1
WIDTHS: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
BARE = "uint16"
"""The width of a file without a record."""
_REMEDY = "name data that hold text, or ask for fewer --min_tokens"


@dataclass(frozen=True)
class TokenFileRecord:
    """What a file of token ids holds."""

    width: str
    """Of an id: a name of ``WIDTHS``."""
    tokens: int
    documents: int
    tokenizer: str
    """Fingerprint, see :func:`tape_ds.data.packing.tokenizer_fingerprint`."""
    vocabulary: int
    """Entries of the tokenizer."""
    sha256: str
    """Of the file's bytes."""
    sources: dict[str, str]
    """Fingerprint of each source of the documents, by its spec."""
    choice: dict[str, Any]
    """By which rule documents were taken from the sources."""
    format: int = FORMAT


def record_path(path: Path) -> Path:
    """Where the record of a file lies."""
    return path.with_name(f"{path.name}.json")


def read_record(path: Path) -> TokenFileRecord | None:
    """The record beside a file; None where there is none.

    Raises:
        ValueError: it is not one.
    """
    beside = record_path(path)
    if not beside.exists():
        return None
    content = json.loads(beside.read_text(encoding="utf-8"))
    names = {entry.name for entry in dataclasses.fields(TokenFileRecord)}
    if not isinstance(content, dict) or set(content) != names:
        raise ValueError(f"{beside.name} has not the fields {', '.join(sorted(names))}")
    if content["format"] != FORMAT or content["width"] not in WIDTHS or not isinstance(content["tokens"], int):
        raise ValueError(f"{beside.name} is of another format than {FORMAT}")
    return TokenFileRecord(**content)


def width_for(vocabulary: int) -> str:
    """The narrowest width that holds every id of a vocabulary."""
    return next(name for name, width in WIDTHS.items() if vocabulary - 1 <= np.iinfo(width).max)


def write(
    path: Path,
    documents: Iterable[np.ndarray],
    *,
    tokenizer: str,
    vocabulary: int,
    sources: Mapping[str, str],
    choice: Mapping[str, Any],
) -> TokenFileRecord:
    """Write ``documents``, token ids int [n] each, one after another, and the record beside them.

    Both files are complete before they get their names, the record first: between the two there is at worst a record
    that the file does not fit, which readers refuse.

    Raises:
        UserError: no document has a token.
    """
    width = WIDTHS[name := width_for(vocabulary)]
    record: list[TokenFileRecord] = []

    def both(aside: Path) -> None:
        digest, tokens, count = hashlib.sha256(), 0, 0
        with open(aside, "wb") as file:
            for ids in documents:
                raw = ids.astype(width).tobytes()
                file.write(raw)
                digest.update(raw)
                tokens, count = tokens + len(ids), count + 1
        if tokens == 0:
            wrong = "no document has a token, or none as many as are asked for"
            raise UserError(Problem("--data", list(sources), wrong, _REMEDY))
        shown = {redacted(spec): fingerprint for spec, fingerprint in sources.items()}
        record.append(
            TokenFileRecord(name, tokens, count, tokenizer, vocabulary, digest.hexdigest(), shown, dict(choice))
        )
        storage.sync(aside)
        storage.write_json(record_path(path), dataclasses.asdict(record[0]))

    storage.write_file(path, both)
    return record[0]
