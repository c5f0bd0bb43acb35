"""``arrow``: documents as token ids in a folder of ``datasets``, and the manifest of a prepared one.

``tape-ds prepare-data`` tokenises a corpus ahead into shards (:mod:`tape_ds.data.prepared`). ``datasets`` loads its
folder (``state.json``, ``dataset_info.json``, ``*.arrow``), which also has a ``manifest.json``, written last: the
fingerprints of tokenizer and data, and the documents, tokens, size and SHA-256 of every shard. Every run compares the
sizes; only ``tape-ds prepare-data --check`` reads the shards completely.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds import storage
from tape_ds.data.sources.base import TokenSource
from tape_ds.data.sources.file_identity import file_identity
from tape_ds.errors import Problem, UserError

SHARD_TOKENS = 100_000_000  # 200 MB; 400 MB of a vocabulary above 65,536
PARTS = 64  # tasks of a preparation
FORMAT = 3  # raise it when other output is written for the same input
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
    documents: int  # without those that have no token
    tokens: int
    read: int  # documents that were read for it
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Settings:
    """The settings that decide the contents of every shard."""

    split: str
    tokenizer: str  # fingerprint, see `tokenizer_fingerprint`
    # its path or name, for people, as are the addresses
    tokenizer_name: str
    # data specs, in the order in which they are read
    addresses: list[str]
    # hash of the sources' fingerprints and of the names of what is read (files, mostly), in their order
    data: str
    shard_tokens: int
    parts: int
    ids: str = "int32"  # type of a token id
    format: int = FORMAT


@dataclass(frozen=True)
class DataManifest:
    settings: Settings
    shards: tuple[ShardEntry, ...]  # in the order of the documents

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents, independent of the folder's place."""
        return _hash(
            {
                "tokenizer": self.settings.tokenizer,
                "shards": [asdict(shard) for shard in self.shards],
            }
        )

    def write(self, folder: Path) -> None:
        """Finish ``folder``, which has the shards and ``dataset_info.json``."""
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
            raise ValueError(
                f"its format is {content['settings']['format']}, this program reads {FORMAT}"
            )
        return DataManifest(
            Settings(**content["settings"]),
            tuple(ShardEntry(**shard) for shard in content["shards"]),
        )
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
    wrongs = [wrong_size(folder, shard) for shard in shards]
    return [Problem(field, value, wrong, PREPARE_AGAIN) for wrong in wrongs if wrong]


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
            return [
                self.problem(
                    "no such folder", f"check the path; relative ones start at {Path.cwd()}"
                )
            ]
        if is_prepared(self.path) and (
            problems := check_manifest(self.path, self.field, self.spec)
        ):
            return problems
        try:
            info = json.loads((self.path / "dataset_info.json").read_text(encoding="utf-8"))
            columns = dict(info["features"])
            state = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
            names = [str(each["filename"]) for each in state["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "write it with datasets' save_to_disk; of several splits name one, DIR/SPLIT"
            return [self.problem(f"not a saved dataset ({error!r})", remedy)]
        outside = [name for name in names if Path(name).name != name]
        if outside:
            wrong = f"its state.json names {', '.join(outside)}, and a file outside its folder is in no fingerprint"
            return [
                self.problem(
                    wrong, "put the files into the folder, or write it again with save_to_disk"
                )
            ]
        if is_prepared(self.path) and names != [
            shard.file for shard in read_manifest(self.path).shards
        ]:
            return [
                self.problem(
                    f"its state.json names other shards than its {MANIFEST}",
                    "copy the whole folder again",
                )
            ]
        absent = [name for name in names if not (self.path / name).is_file()]
        if absent:
            return [
                self.problem(
                    f"{', '.join(absent)} of it is missing",
                    "copy the whole folder, or write it again",
                )
            ]

        # a list of integers, which older datasets wrote as a list of one feature
        feature = columns.get("input_ids")
        inner = feature[0] if isinstance(feature, list) and feature else feature
        inner = inner.get("feature", inner) if isinstance(inner, dict) else {}
        if inner is feature or not (
            isinstance(inner, dict) and str(inner.get("dtype")).startswith(("int", "uint"))
        ):
            wrong = f"no column 'input_ids' of lists of integers (columns: {', '.join(columns)})"
            return [self.problem(wrong, "store token ids, one list a document")]
        return []

    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        import datasets

        remedy = "write the folder again"
        try:
            dataset = datasets.load_from_disk(str(self.path)).with_format("arrow")
        except Exception as error:  # datasets raises anything for a folder of another version
            raise UserError(self.problem(f"it cannot be read: {error!r}", remedy)) from error
        number = 0
        for batch in self.reading(dataset.iter(batch_size=64), "it cannot be read", remedy):
            rows = batch.column("input_ids").combine_chunks()
            names = (
                batch.column("name").to_pylist()
                if "name" in batch.column_names
                else [None] * len(rows)
            )
            for name, row in zip(names, rows, strict=True):
                name = str(name) if name is not None else f"{self.path.name}:{number}"
                if row.is_valid and not row.values.null_count:
                    yield name, row.values.to_numpy()
                else:
                    self.leave_out(f"{name} has a null for a token id", remedy)
                number += 1

    def recorded_tokenizer(self) -> str | None:
        if is_prepared(self.path):
            return read_manifest(self.path).settings.tokenizer
        return None

    def fingerprint(self) -> str:
        """The manifest's, or the identities of all files (:func:`file_identity`)."""
        if is_prepared(self.path):
            return read_manifest(self.path).fingerprint
        state = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        named = {each["filename"] for each in state["_data_files"]}
        found = (
            path
            for path in self.path.iterdir()
            if path.suffix in {".arrow", ".json"} or path.name in named
        )
        files = sorted(found)
        parts = [f"{path.name}={file_identity(path)}" for path in files]
        return hashlib.sha256("\0".join([self.kind, *parts]).encode()).hexdigest()
