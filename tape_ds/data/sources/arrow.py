"""``arrow``: documents that are token ids already, in a saved ``datasets`` folder."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tape_ds import paths
from tape_ds.data import manifest
from tape_ds.data.sources.base import OTHER_TOKENIZER, TokenSource, file_identity
from tape_ds.errors import Problem, UserError


class ArrowFolder(TokenSource):
    """``arrow:DIR``: written by ``Dataset.save_to_disk``, with a column ``input_ids`` (and perhaps ``name``).

    Or by ``tape-ds prepare-data``: such a folder is held to its manifest (:mod:`tape_ds.data.manifest`).
    """

    kind = "arrow"
    form = "arrow:DIR"

    def __init__(self, spec: str, field: str = "data"):
        super().__init__(spec, field)
        self.folder = paths.of(self.rest)

    @property
    def prepared(self) -> bool:
        """Whether the folder is one of ``tape-ds prepare-data``."""
        return bool(self.rest) and manifest.is_prepared(self.folder)

    def check(self) -> list[Problem]:
        """The folder is one dataset and has ``input_ids``; a prepared one has every shard, and no other."""
        if not self.rest or not os.path.isdir(self.folder):  # which a name too long for one is not, either
            return [self.problem("no such folder", f"check the path; relative ones start at {Path.cwd()}")]
        if self.prepared and (found := manifest.check(self.folder, self.field, self.spec)):
            return found
        if (self.folder / "dataset_dict.json").is_file():
            split = min((child.name for child in self.folder.iterdir() if child.is_dir()), default="SPLIT")
            remedy = f"name one: {self.spec.rstrip('/')}/{split}"
            return [self.problem("a folder of several splits", remedy)]
        try:
            info = json.loads((self.folder / "dataset_info.json").read_text(encoding="utf-8"))
            columns = dict(info["features"])
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
            absent = [name for each in state["_data_files"] if not (self.folder / (name := each["filename"])).is_file()]
        except FileNotFoundError as error:
            wrong = f"not a saved dataset: there is no {Path(error.filename).name} in it"
            return [
                self.problem(wrong, "write it with datasets' save_to_disk, or name files by text:, jsonl:, parquet:")
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [self.problem(f"not a saved dataset ({error!r})", "write it with datasets' save_to_disk")]
        if absent:
            return [self.problem(f"{', '.join(absent)} of it is missing", "copy the folder whole, or write it anew")]
        if not state["_data_files"]:
            return [self.problem("it has no rows", "name data that hold text")]
        if "input_ids" not in columns:
            remedy = f"tokenise it first; its columns are {', '.join(columns)}"
            return [self.problem("the dataset has no column 'input_ids'", remedy)]
        if not _is_integer_list(columns["input_ids"]):
            return [self.problem("'input_ids' is not a list of integers", "store token ids, one list a document")]
        return []

    def token_rows(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, token ids [n]) of every row; rows without a name are named ``folder:number``.

        Raises:
            UserError: a row without ids, or with a null among them; a damaged file.
        """
        return self.reading(self._rows(), "it cannot be read", "write the folder again")

    def _rows(self) -> Iterator[tuple[str, np.ndarray]]:
        import datasets

        number = 0
        try:
            dataset = datasets.load_from_disk(str(self.folder)).with_format("arrow")
        except Exception as error:  # of a folder that another version wrote datasets raises whatever it meets
            raise UserError(self.problem(f"it cannot be read: {error!r}", "write the folder again")) from error
        for batch in dataset.iter(batch_size=64):
            rows = batch.column("input_ids").combine_chunks()
            names = batch.column("name").to_pylist() if "name" in batch.column_names else [None] * len(rows)
            for name, row in zip(names, rows, strict=True):
                name = str(name) if name is not None else f"{self.folder.name}:{number}"
                if row.is_valid and not row.values.null_count:
                    yield name, row.values.to_numpy()
                else:
                    self.leave_out(f"{name} has a null for a token id", "write the folder again")
                number += 1

    def check_tokenizer(self, identity: str) -> list[Problem]:
        """Of a prepared folder; another does not say whose ids it holds."""
        own = manifest.read(self.folder).settings.tokenizer if self.prepared else identity
        return [] if own == identity else [self.problem(*OTHER_TOKENIZER)]

    def fingerprint(self) -> str:
        """Of a prepared folder its manifest's, else the identity of every file (:func:`file_identity`)."""
        if self.prepared:
            return manifest.read(self.folder).fingerprint
        files = sorted(path for path in self.folder.iterdir() if path.suffix in {".arrow", ".json"})
        parts = [f"{path.name}={file_identity(path)}" for path in files]
        return hashlib.sha256("\0".join([self.kind, *parts]).encode()).hexdigest()

    def identities(self, split: str) -> set[str]:
        """Return the folder, links resolved."""
        return {self.folder.resolve().as_posix()}


def _is_integer_list(feature: Any) -> bool:
    """Return whether a feature of ``dataset_info.json`` is a list of integers (written as a list by older
    ``datasets``)."""
    inner = feature[0] if isinstance(feature, list) and feature else feature
    inner = inner.get("feature", inner) if isinstance(inner, dict) else {}
    listed = inner is not feature
    return listed and isinstance(inner, dict) and str(inner.get("dtype")).startswith(("int", "uint"))
