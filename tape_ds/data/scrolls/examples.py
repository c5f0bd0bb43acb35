"""The rows of a data set of SCROLLS, from the hub's zip files or from a folder of one's own.

The hub holds ``NAME.zip`` with ``NAME/SPLIT.jsonl`` in it and a loading script that no library runs any more; the
archive's member is read here, and nothing is unpacked to disk or executed. Each line is a JSON object with ``id``,
``input`` and ``output`` (and ``pid``, which nothing here needs). A question with several reference answers has a row
for each, all with one id.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape_ds import paths, storage
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.scrolls import made
from tape_ds.data.scrolls.datasets import HUB_REPOSITORY, MADE, SPLITS, Dataset, find
from tape_ds.data.sources.base import UNREADABLE, file_identity
from tape_ds.data.sources.opening import File
from tape_ds.data.sources.standard_library import StandardLibrary
from tape_ds.errors import Problem, UserError, did_you_mean

WITHOUT_ANSWERS = "test"
"""The split whose reference answers are not published."""


@dataclass(frozen=True)
class ScrollsRow:
    """One line of a file: a text with one reference answer; None where it is not published."""

    id: str
    input: str
    output: str | None
    hard: bool = False
    """QuALITY's mark of a question that hurried readers got wrong (``is_hard``)."""


@dataclass(frozen=True)
class Example:
    """One question with all of its reference answers."""

    id: str
    input: str
    """Question and document, as published: the question first, an empty line, the document; summaries have no
    question but for QMSum."""
    outputs: tuple[str, ...]
    """In the order of the file; empty in the split ``test``."""
    hard: bool = False
    """As the first of its rows says."""


def read(name: str, split: str, data_dir: str | Path | None = None) -> list[Example]:
    """Return the questions of a split in the file's order, each once.

    Args:
        name: of :func:`tape_ds.data.scrolls.datasets.available`.
        split: one of :data:`tape_ds.data.scrolls.datasets.SPLITS`.
        data_dir: a folder with ``NAME/SPLIT.jsonl`` or ``NAME.zip``, or such a zip file itself; None: the hub's file,
            downloaded into huggingface_hub's cache.

    Raises:
        UserError: an unknown name or split, no such file, a line that is no row, a split without rows.
    """
    first: dict[str, ScrollsRow] = {}
    outputs: dict[str, list[str]] = {}
    for row in rows(name, split, data_dir):
        first.setdefault(row.id, row)
        outputs.setdefault(row.id, []).extend([] if row.output is None else [row.output])
    return [Example(row.id, row.input, tuple(outputs[row.id]), row.hard) for row in first.values()]


def rows(
    name: str, split: str, data_dir: str | Path | None = None, bad_rows: BadRows | None = None
) -> Iterator[ScrollsRow]:
    """Yield the lines of a split, one for each reference answer; a line at a time, since whole splits may take many GB.

    Args:
        name, split, data_dir: as for :func:`read`.
        bad_rows: what happens to lines that cannot be read; by default the first is refused.

    Raises:
        UserError: as :func:`read`, as soon as it is met.
    """
    dataset, bad_rows = _checked(name, split), bad_rows or BadRows()
    if dataset == MADE:
        yield from (ScrollsRow(*row) for row in made.rows(split))
        return
    location = _locate(dataset, split, data_dir)
    found = False
    try:
        with location.file.open() as raw:
            for number, line in enumerate(raw, 1):
                if not line.strip():
                    continue
                found = True
                try:
                    row = _row(line, location, number, split)
                except UserError as error:
                    bad_rows.add(*error.problems)
                    continue
                yield row
    except UserError:
        raise
    except (*UNREADABLE, RuntimeError) as error:  # RuntimeError: an encrypted archive, an unknown compression
        remedy = getattr(error, "remedy", "repair the file, or fetch it again")
        raise UserError(location.problem(f"cannot be read: {error}", remedy)) from error
    if not found:
        raise UserError(location.problem("holds no rows", "give a file with a JSON object on each line"))


def fingerprint(name: str, split: str, data_dir: str | Path | None = None) -> str:
    """Changes when the split's contents do: of an archive's member its checksum, of a plain file its identity.

    Raises:
        UserError: as :func:`read`, but for what only reading can tell.
    """
    dataset = _checked(name, split)
    identity = made.fingerprint(split) if dataset == MADE else _locate(dataset, split, data_dir).identity()
    return hashlib.sha256(repr((name, split, identity)).encode()).hexdigest()


def check(name: str, splits: tuple[str, ...], data_dir: str | Path | None) -> list[Problem]:
    """Return what is wrong with ``dataset`` and ``data_dir`` as far as the disk can tell; nothing is downloaded."""
    problems: list[Problem] = []
    try:
        dataset = find(name)
    except UserError as error:
        return error.problems
    if dataset == MADE and data_dir is not None:
        return [Problem("data_dir", str(data_dir), f"{name} is made on the spot, no file is read", "remove it")]
    for split in splits if data_dir is not None else ():
        try:
            _locate(dataset, split, data_dir)
        except UserError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return problems + (StandardLibrary("stdlib", "dataset").check() if dataset == MADE else [])


@dataclass(frozen=True)
class _Location:
    """A split's file: plain, or a member of an archive."""

    path: Path
    file: File

    def identity(self) -> str:
        """Return what stands for the contents."""
        member = self.file.filesystem.info(self.file.path)
        return f"{member['file_size']}:{member['CRC']:08x}" if "CRC" in member else file_identity(self.path)

    def problem(self, wrong: str, remedy: str) -> Problem:
        """A problem with this file."""
        return Problem("data_dir", str(self.path), f"{self.file.path} {wrong}", remedy)


def _checked(name: str, split: str) -> Dataset:
    dataset = find(name)
    if split not in SPLITS:
        raise UserError(Problem("split", split, "no such split", did_you_mean(split, SPLITS)))
    return dataset


def _locate(dataset: Dataset, split: str, data_dir: str | Path | None) -> _Location:
    """Return the split's file, downloaded where no ``data_dir`` is given.

    Raises:
        UserError: there is none.
    """
    from fsspec.implementations.local import LocalFileSystem

    if data_dir is None:
        return _member(_download(dataset), dataset, split)
    given = paths.of(str(data_dir))
    plain, archive = given / dataset.name / f"{split}.jsonl", given / f"{dataset.name}.zip"
    if plain.is_file():
        return _Location(plain, File(LocalFileSystem(), str(plain)))
    if given.is_file():
        return _member(given, dataset, split)
    if archive.is_file():
        return _member(archive, dataset, split)
    if not given.is_dir():  # the same words for every data set and split: one problem
        remedy = "give a folder with NAME/SPLIT.jsonl or NAME.zip, or leave it out to use the hub's"
        raise UserError(Problem("data_dir", str(data_dir), "no such folder", remedy))
    wrong = f"no {dataset.name}/{split}.jsonl and no {archive.name} there"
    raise UserError(Problem("data_dir", str(data_dir), wrong, "add one of the two, or leave it out to use the hub's"))


def _member(path: Path, dataset: Dataset, split: str) -> _Location:
    """Return the member of an archive that is this split of this data set, by its whole name as it is published."""
    from fsspec.implementations.zip import ZipFileSystem

    member = f"{dataset.name}/{split}.jsonl"
    remedy = "give the zip file as SCROLLS publishes it"
    try:
        archive = ZipFileSystem(str(path))
    except (*UNREADABLE, RuntimeError) as error:  # RuntimeError: a version of the format that zipfile does not know
        raise UserError(Problem("data_dir", str(path), f"not a readable zip file ({error})", remedy)) from error
    if not archive.isfile(member):
        raise UserError(Problem("data_dir", str(path), f"no file called {member} in it", remedy))
    return _Location(path, File(archive, member))


def _download(dataset: Dataset) -> Path:
    """Return the hub's archive, from huggingface_hub's cache where it is there."""
    from huggingface_hub import hf_hub_download

    file = f"{dataset.name}.zip"
    try:
        return Path(hf_hub_download(HUB_REPOSITORY, file, repo_type="dataset"))
    except (*UNREADABLE, RuntimeError) as error:  # no network, offline mode, no such file: all end here
        reason = " ".join(str(error).split())
        wrong = f"{HUB_REPOSITORY}/{file} cannot be had from the hub: {reason}"
        remedy = f"check the network, or give data_dir: a folder with {file} or {dataset.name}/SPLIT.jsonl"
        raise UserError(Problem("dataset", dataset.name, wrong, remedy)) from error


def _row(line: bytes, location: _Location, number: int, split: str) -> ScrollsRow:
    """Return one line as a row.

    Raises:
        UserError: it is none.
    """
    remedy = "each line needs id, input and output, all of them texts"
    try:
        fields: Any = json.loads(line)  # with or without the mark that some editors put before UTF-8
    except (ValueError, RecursionError) as error:
        raise UserError(location.problem(f"line {number} is no JSON ({error})", remedy)) from error
    wanted = ["id", "input"] if split == WITHOUT_ANSWERS else ["id", "input", "output"]
    wrong = [name for name in wanted if not (isinstance(fields, dict) and isinstance(fields.get(name), str))]
    if wrong:
        raise UserError(location.problem(f"line {number} has no text under {', '.join(wrong)}", remedy))
    if not fields["input"].strip():
        raise UserError(location.problem(f"line {number} has an empty input", "remove the line, or give its text"))
    output = fields["output"] if isinstance(fields.get("output"), str) else None
    # half of a character, as "\ud83d": no tokenizer and no file takes it
    if not storage.is_utf8(f"{fields['id']}{fields['input']}{output}"):
        raise UserError(location.problem(f"line {number} is no Unicode text", remedy))
    return ScrollsRow(fields["id"], fields["input"], output, fields.get("is_hard") is True)
