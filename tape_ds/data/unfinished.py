"""A folder while data are being prepared in it: who is at work, what was asked for, which shards are done.

Everything lies in its subfolder ``unfinished``: ``plan.json`` (the settings), a record for each part, the shards that
are being written, and a lock. A shard is noted in its part's record before it gets its place, so a file that no record
names is foreign, and one that a record names and that is not there has to be made again, with all behind it.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tape_ds import storage
from tape_ds.data import manifest
from tape_ds.data.manifest import MANIFEST, UNFINISHED, Entry, Manifest, Settings
from tape_ds.data.packing import document_features
from tape_ds.data.sources import Shard
from tape_ds.errors import Problem, UserError, raise_if_any

_PLAN = "plan.json"
_LOCK = "lock"
_WRITING = ".writing"


@dataclass(frozen=True)
class Part:
    """A task: some inputs, and the shards of them that are there already."""

    number: int
    inputs: tuple[Shard, ...]
    entries: tuple[Entry, ...] = ()
    done: bool = False
    """Whether these are all its shards."""


class Unfinished:
    """The folder ``folder``, which may not be there yet."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.inner = folder / UNFINISHED

    def problem(self, wrong: str, remedy: str) -> Problem:
        """A :class:`Problem` with this folder."""
        return Problem("output", str(self.folder), wrong, remedy)

    def check(self, settings: Settings) -> None:
        """Whether ``settings`` may be prepared here: the folder is new, empty, or was begun with them.

        Raises:
            UserError: naming every setting that differs.
        """
        if self.folder.is_dir() and manifest.is_prepared(self.folder):
            known = self._settings()
            raise_if_any([] if known is None else _differences(known, settings))
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UserError(self.problem("holds something else", "name a new folder"))

    def _settings(self) -> Settings | None:
        """What the folder was begun with; None when it was killed before that was written."""
        try:
            if (self.folder / MANIFEST).is_file():
                return manifest.read(self.folder).settings
            if (self.inner / _PLAN).is_file():
                return Settings(**json.loads((self.inner / _PLAN).read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise UserError(self.problem(f"cannot be gone on with: {error}", "name a new folder")) from error
        return None

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Alone at work in the folder.

        Raises:
            UserError: somebody else is, or it cannot be made.
        """
        from filelock import FileLock, Timeout

        try:
            self.inner.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(self.problem(f"cannot be made ({error.strerror})", "name another folder")) from error
        try:
            with FileLock(self.inner / _LOCK, timeout=0):
                yield
        except Timeout as error:
            wrong = "another preparation is at work in it"
            raise UserError(self.problem(wrong, "wait until it is done, or name another folder")) from error

    def take_up(self, settings: Settings, parts: Sequence[Part]) -> list[Part]:
        """``parts`` with the shards that are there; leaves nothing else in the folder.

        Raises:
            UserError: naming every foreign shard and every one of another size than it had.
        """
        for left_over in self.inner.glob(f"*{_WRITING}"):
            left_over.unlink()
        finished = (self.folder / MANIFEST).is_file()
        known = manifest.read(self.folder).shards if finished else ()
        found = []
        for part in parts:
            own = tuple(entry for entry in known if entry.part == part.number)
            found.append(replace(part, entries=own, done=True) if finished else self.recorded(part))
        raise_if_any([*self._foreign(found), *self._misfits(found)])
        taken = [self._present(part) for part in found]
        for part in taken:
            self.record(part)
        storage.write_json(self.inner / _PLAN, asdict(settings))
        (self.folder / MANIFEST).unlink(missing_ok=True)
        return taken

    def _foreign(self, parts: Sequence[Part]) -> list[Problem]:
        known = {entry.file for part in parts for entry in part.entries}
        names = sorted(path.name for path in self.folder.glob("*.arrow") if path.name not in known)
        return [self.problem(f"{name} is no shard of this preparation", "move that file elsewhere") for name in names]

    def _misfits(self, parts: Sequence[Part]) -> list[Problem]:
        there = [entry for part in parts for entry in part.entries if (self.folder / entry.file).exists()]
        wrongs = [manifest.misfit(self.folder, entry) for entry in there]
        return [self.problem(wrong, manifest.MAKE_ANEW) for wrong in wrongs if wrong]

    def _present(self, part: Part) -> Part:
        """``part`` up to its first shard that is missing; what lies behind is removed, since it is made again."""
        missing = [k for k, entry in enumerate(part.entries) if not (self.folder / entry.file).exists()]
        if not missing:
            return part
        for entry in part.entries[missing[0] :]:
            (self.folder / entry.file).unlink(missing_ok=True)
        return replace(part, entries=part.entries[: missing[0]], done=False)

    def recorded(self, part: Part) -> Part:
        """``part`` as its record has it."""
        try:
            record = json.loads(self._record(part).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return part
        return replace(part, entries=tuple(Entry(**entry) for entry in record["entries"]), done=record["done"])

    def record(self, part: Part) -> None:
        """Note what of ``part`` is there."""
        entries = [asdict(entry) for entry in part.entries]
        storage.write_json(self._record(part), {"entries": entries, "done": part.done})

    def _record(self, part: Part) -> Path:
        return self.inner / f"{part.number:05d}.json"

    def aside(self, name: str) -> Path:
        """Where this process writes the shard ``name`` until it is whole."""
        return self.inner / f"{name}.{os.getpid()}{_WRITING}"

    def finish(self, settings: Settings, parts: Sequence[Part]) -> Manifest:
        """Write the manifest, once every part is done.

        Raises:
            UserError: they have no shard at all; the folder is as empty as before then.
        """
        from datasets import DatasetInfo

        result = Manifest(settings, tuple(entry for part in parts for entry in part.entries))
        if not result.shards:
            shutil.rmtree(self.inner)
            remedy = "name data that hold text"
            raise UserError(Problem("data", settings.addresses, "no document has any token", remedy))
        DatasetInfo(features=document_features()).write_to_directory(str(self.folder))
        result.write(self.folder)
        shutil.rmtree(self.inner)
        return result


def _differences(known: Settings, wanted: Settings) -> list[Problem]:
    """A problem for each setting in which ``wanted`` is not what the folder was begun with."""
    names = known.differences(wanted)
    if {"sources", "split"} & set(names):
        names = [name for name in names if name != "inputs"]  # which follow from these
    problems = []
    for name in names:
        option, value, wrong = name, getattr(wanted, name), f"the folder was begun with {getattr(known, name)!r}"
        if name == "tokenizer":
            value, wrong = (
                wanted.tokenizer_name,
                f"not the tokenizer that the folder was begun with ({known.tokenizer_name})",
            )
        elif name in {"sources", "inputs"}:
            option, value = "data", wanted.addresses
            wrong = f"not the data that the folder was begun with ({', '.join(known.addresses)}), or changed since"
        problems.append(Problem(option, value, wrong, "give what it was begun with, or name a new folder"))
    return problems
