"""``arrow``: documents as token ids in a folder of ``datasets``, and the manifest of a prepared one.

``tape-ds prepare-data`` tokenises a corpus ahead into shards (:mod:`tape_ds.data.prepared`). ``datasets`` loads its
folder (``state.json``, ``dataset_info.json``, ``*.arrow``), which also has a ``manifest.json``, written last: the
fingerprints of tokenizer and data, and the documents, tokens, size and SHA-256 of every shard. Every run compares the
sizes; only ``tape-ds prepare-data --check`` reads the shards completely.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds import storage
from tape_ds.data.sources.base import TokenSource
from tape_ds.data.sources.file_identity import file_identity
from tape_ds.errors import Problem, UserError

# 200 MB; 400 MB of a vocabulary above 65,536
SHARD_TOKENS = 100_000_000
# tasks of a preparation
PARTS = 64
# raise it when other output is written for the same input
FORMAT = 3
WIDE = 2
"""The format before, in which every id has 32 bits; such folders are read, and finished."""
MANIFEST = "manifest.json"
# folder of the state that an interrupted preparation resumes from
RECORDS = "records"
PREPARE_AGAIN = "delete that file and run tape-ds prepare-data again with the same settings: it makes what is missing"


@dataclass(frozen=True)
class ShardEntry:
    """One shard, an ``.arrow`` file, and its contents."""

    file: str
    # without those that have no token
    documents: int
    tokens: int
    # documents that were read for it
    read: int
    # bytes
    size: int
    sha256: str


@dataclass(frozen=True)
class Settings:
    """The settings that decide the contents of every shard."""

    split: str
    # fingerprint, see `tokenizer_fingerprint`
    tokenizer: str
    # its path or name, for people, as are the addresses
    tokenizer_name: str
    # data specs, in the order in which they are read
    addresses: list[str]
    # hash of the sources' fingerprints and of the names of what is read (files, mostly), in their order
    data: str
    shard_tokens: int
    parts: int
    # type of a token id
    ids: str = "int32"
    format: int = FORMAT


@dataclass(frozen=True)
class DataManifest:
    settings: Settings
    # in the order of the documents
    shards: tuple[ShardEntry, ...]

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents, independent of the folder's place."""
        shards = list(map(asdict, self.shards))
        return _hash({"tokenizer": self.settings.tokenizer, "shards": shards})

    def write(self, folder: Path) -> None:
        """Finish ``folder``, which has the shards and ``dataset_info.json``."""
        # by which datasets.load_from_disk finds the shards
        state: dict[str, Any] = {
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


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_prepared(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() or (folder / RECORDS).is_dir()


def read_manifest(folder: Path) -> DataManifest:
    """Return the manifest of a finished folder; raise ValueError if it cannot be read."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if content.pop("check") != _hash(content):
            raise ValueError("its check sum is wrong")
        if content["settings"]["format"] not in (WIDE, FORMAT):
            form = content["settings"]["format"]
            raise ValueError(f"its format is {form}, this program reads {FORMAT}")
        shards = tuple(ShardEntry(**shard) for shard in content["shards"])
        return DataManifest(Settings(**content["settings"]), shards)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{MANIFEST} is damaged or of another version: {error}") from error


def check_manifest(folder: Path, field: str, value: str) -> list[Problem]:
    """Return the problems of a prepared folder that file sizes show; messages call it ``field`` and ``value``."""
    if not (folder / MANIFEST).is_file():
        wrong = f"its preparation is not finished: there is no {MANIFEST}"
        remedy = "run tape-ds prepare-data again with the same settings: it resumes where it was"
        return [Problem(field, value, wrong, remedy)]
    try:
        shards = read_manifest(folder).shards
    except ValueError as error:
        return [Problem(field, value, str(error), "prepare the data again into another folder")]
    problems = []
    for shard in shards:
        reason = wrong_size(folder, shard)
        if reason is not None:
            problems.append(Problem(field, value, reason, PREPARE_AGAIN))
    return problems


def wrong_size(folder: Path, shard: ShardEntry) -> str | None:
    try:
        size = (folder / shard.file).stat().st_size
    except OSError:
        return f"shard {shard.file} is missing"
    if size == shard.size:
        return None
    return f"shard {shard.file} has {size} bytes instead of {shard.size}"


class ArrowFolder(TokenSource):
    """``arrow:DIR``: written by ``Dataset.save_to_disk`` with a column ``input_ids`` (and perhaps ``name``), or by
    ``tape-ds prepare-data``."""

    kind = "arrow"
    form = "arrow:DIR"

    def check(self) -> list[Problem]:
        # unlike Path.is_dir, False for a name that is too long
        if not self.rest or not os.path.isdir(self.path):
            remedy = f"check the path; relative ones start at {Path.cwd()}"
            return [self.problem("no such folder", remedy)]
        if is_prepared(self.path):
            problems = check_manifest(self.path, self.field, self.spec)
            if problems:
                return problems
        try:
            info = json.loads((self.path / "dataset_info.json").read_text(encoding="utf-8"))
            columns = dict(info["features"])
            names = self._file_names()
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "write it with datasets' save_to_disk; of several splits name one, DIR/SPLIT"
            return [self.problem(f"not a saved dataset ({error!r})", remedy)]
        return list(islice(self._problems(columns, names), 1))

    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        import datasets

        remedy = "write the folder again"
        try:
            dataset = datasets.load_from_disk(str(self.path)).with_format("arrow")
        except Exception as error:
            # datasets raises anything for a folder of another version
            raise UserError(self.problem(f"it cannot be read: {error!r}", remedy)) from error
        number = 0
        for batch in self.reading(dataset.iter(batch_size=64), "it cannot be read", remedy):
            rows = batch.column("input_ids").combine_chunks()
            names = [None] * len(rows)
            if "name" in batch.column_names:
                names = batch.column("name").to_pylist()
            for name, row in zip(names, rows, strict=True):
                if name is None:
                    name = f"{self.path.name}:{number}"
                name = str(name)
                if row.is_valid and not row.values.null_count:
                    yield name, row.values.to_numpy()
                else:
                    self.leave_out(f"{name} has a null for a token id", remedy)
                number += 1

    def recorded_tokenizer(self) -> str | None:
        if is_prepared(self.path):
            return read_manifest(self.path).settings.tokenizer
        return None

    def _file_names(self) -> list[str]:
        state = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        return [str(entry["filename"]) for entry in state["_data_files"]]

    def _problems(self, columns: Mapping[str, Any], names: Sequence[str]) -> Iterator[Problem]:
        """Find what is wrong with the folder's files and its column; the first decides."""
        outside = [name for name in names if Path(name).name != name]
        if outside:
            reason = f"its state.json names {', '.join(outside)}, and a file outside its folder is in no fingerprint"
            remedy = "put the files into the folder, or write it again with save_to_disk"
            yield self.problem(reason, remedy)
        if is_prepared(self.path):
            recorded = [shard.file for shard in read_manifest(self.path).shards]
            if names != recorded:
                reason = f"its state.json names other shards than its {MANIFEST}"
                yield self.problem(reason, "copy the whole folder again")
        absent = [name for name in names if not (self.path / name).is_file()]
        if absent:
            reason = f"{', '.join(absent)} of it is missing"
            yield self.problem(reason, "copy the whole folder, or write it again")
        if not _holds_integers(columns.get("input_ids")):
            reason = f"no column 'input_ids' of lists of integers (columns: {', '.join(columns)})"
            yield self.problem(reason, "store token ids, one list a document")

    def fingerprint(self) -> str:
        """The manifest's, or the identities of all files (:func:`file_identity`)."""
        if is_prepared(self.path):
            return read_manifest(self.path).fingerprint
        named = self._file_names()
        parts = [self.kind]
        for path in sorted(self.path.iterdir()):
            if path.suffix in {".arrow", ".json"} or path.name in named:
                parts.append(f"{path.name}={file_identity(path)}")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _holds_integers(feature: Any) -> bool:
    """Return whether a feature is a list of integers, which older datasets wrote as a list of one feature."""
    inner = feature
    if isinstance(feature, list) and feature:
        inner = feature[0]
    if not isinstance(inner, dict):
        return False
    inner = inner.get("feature", inner)
    if inner is feature or not isinstance(inner, dict):
        return False
    return str(inner.get("dtype")).startswith(("int", "uint"))
