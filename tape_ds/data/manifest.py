"""The manifest of a folder of prepared data, and whether the shards beside it are those it names.

``tape-ds prepare-data`` tokenises a corpus ahead into shards (:mod:`tape_ds.data.prepared`). The folder it leaves is
one that ``datasets`` loads (``state.json``, ``dataset_info.json``, ``*.arrow``), and holds a ``manifest.json`` besides,
written last: the tokenizer and the data by their fingerprints, and for every shard its documents, tokens, size and
SHA-256. Every run compares the sizes; only ``tape-ds prepare-data --check`` reads the shards whole.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import Problem

FORMAT = 2
"""Raised when what is written for the same input changes."""

MANIFEST = "manifest.json"
RECORDS = "records"
"""Folder of what the preparation resumes by."""

MAKE_ANEW = "delete that file and run tape-ds prepare-data again with the same settings: it makes what is missing"


@dataclass(frozen=True)
class ShardEntry:
    """One shard, an ``.arrow`` file, and what must be in it."""

    file: str
    documents: int
    """Those without a token are left out."""
    tokens: int
    read: int
    """Documents that were read for it."""
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True)
class Settings:
    """What decides the contents of every shard."""

    split: str
    tokenizer: str
    """Fingerprint, see :func:`tape_ds.data.packing.tokenizer_fingerprint`."""
    tokenizer_name: str
    """Where it was loaded from; for people, as are the data specs: both hold only where it was run."""
    addresses: list[str]
    """Of the sources, in the order in which they are read."""
    data: str
    """Hash of the sources' fingerprints and of the names of what is read (files, mostly), in their order."""
    shard_tokens: int
    parts: int
    format: int = FORMAT


@dataclass(frozen=True)
class DataManifest:
    """A finished preparation."""

    settings: Settings
    shards: tuple[ShardEntry, ...]
    """In the order of the documents."""

    @property
    def documents(self) -> int:
        """Of all shards."""
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Of all shards."""
        return sum(shard.tokens for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents; the same wherever the folder lies."""
        return _hash({"tokenizer": self.settings.tokenizer, "shards": [asdict(shard) for shard in self.shards]})

    def write(self, folder: Path) -> None:
        """Make ``folder`` a finished one; the shards and ``dataset_info.json`` are there."""
        state: dict[str, Any] = {  # by which datasets.load_from_disk finds the shards
            "_data_files": [{"filename": shard.file} for shard in self.shards],
            "_fingerprint": self.fingerprint[:32],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        storage.write_json(folder / "state.json", state)
        content = {"documents": self.documents, "tokens": self.tokens, **asdict(self)}
        storage.write_json(folder / MANIFEST, {**content, "check": _hash(content)})


def is_prepared(folder: Path) -> bool:
    """Return whether ``folder`` is of this kind, finished or not."""
    return (folder / MANIFEST).is_file() or (folder / RECORDS).is_dir()


def read(folder: Path) -> DataManifest:
    """Return the manifest of a finished folder.

    Raises:
        ValueError: it cannot be read; says why.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if content.pop("check") != _hash(content):
            raise ValueError("its check sum is another")
        if content["settings"]["format"] != FORMAT:
            raise ValueError(f"its format is {content['settings']['format']}, this program reads {FORMAT}")
        return DataManifest(Settings(**content["settings"]), tuple(ShardEntry(**shard) for shard in content["shards"]))
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{MANIFEST} is damaged or of another version: {error}") from error


def check(folder: Path, field: str, value: str) -> list[Problem]:
    """Return everything wrong with a prepared folder that sizes can tell; ``field`` and ``value`` name it."""
    if not (folder / MANIFEST).is_file():
        wrong = f"its preparation is not finished: there is no {MANIFEST}"
        remedy = "run tape-ds prepare-data again with the same settings: it resumes where it was"
        return [Problem(field, value, wrong, remedy)]
    try:
        shards = read(folder).shards
    except ValueError as error:
        return [Problem(field, value, str(error), "prepare the data anew into another folder")]
    wrongs = [misfit(folder, shard) for shard in shards]
    return [Problem(field, value, wrong, MAKE_ANEW) for wrong in wrongs if wrong]


def misfit(folder: Path, shard: ShardEntry) -> str | None:
    """Return what a look at the directory tells against a shard: it is missing, or its size is another."""
    try:
        size = (folder / shard.file).stat().st_size
    except OSError:
        return f"shard {shard.file} is missing"
    return None if size == shard.size else f"shard {shard.file} has {size} bytes instead of {shard.size}"


def damage(folder: Path, shard: ShardEntry) -> str | None:
    """Return what reading the whole shard tells against it."""
    wrong = misfit(folder, shard)
    if wrong is None and storage.digest(folder / shard.file) != shard.sha256:
        wrong = f"shard {shard.file} is damaged: its SHA-256 is another"
    return wrong


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
