"""Checkpoints on a disk: committed whole, or not at all.

A checkpoint is a folder ``checkpoint-N`` of a run's folder, N its step, with a ``manifest.json`` of size and SHA-256 of
every file in it. It is written as ``checkpoint-N.writing`` and renamed when everything, manifest included, is on the
disk: an interrupted save never looks like a checkpoint, and later damage shows in the manifest. Ranks come in with
:mod:`.saving` and :mod:`.load`.

    trained.json, config.json, *.safetensors, tokenizer files    trained weights (tape_ds.checkpoint.trained)
    global_stepN/                                                the engine's state, a file for each rank
    optimizer.pt, scheduler.pt, scaler.pt                        without an engine; the scheduler in either case
    rng_state[_R].pth, rank_state_R.json                         of rank R: random numbers, and sums not yet logged
    trainer_state.json                                           steps, history
    manifest.json
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.errors import Problem
from tape_ds.run_folder import TRAINED

FORMAT = 1
"""Raised when older checkpoints can no longer be resumed."""
MANIFEST = "manifest.json"
# Endings of names: of an unfinished save, of what a save replaces, of what is being removed, of what a resumed run
# leaves after its step.
WRITING = ".writing"
REPLACED = ".replaced"
REMOVED = ".removed"
ABANDONED = ".abandoned"

_COMMITTED = re.compile(r"checkpoint-(\d+)")
_ASIDE = re.compile(
    rf"({_COMMITTED.pattern}|{TRAINED})({re.escape(WRITING)}|{re.escape(REPLACED)}|{re.escape(REMOVED)})"
)
"""Names of folders that a killed save, replacement or removal leaves; any other is a person's."""


@dataclass(frozen=True)
class Entry:
    """Size in bytes and hash of a file of a checkpoint, as it was written."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of ``manifest.json``."""

    # optimizer steps taken
    step: int
    processes: int
    # ZeRO stage; None: trained without an engine
    stage: int | None
    files: Mapping[str, Entry]
    """By path within the folder, "/" between its parts."""
    # tensor-parallel size: the engine's parts of that many ranks form one model
    tensor: int = 1
    identity: Mapping[str, Any]
    """All that decides the numbers of the run, see :mod:`tape_ds.training.identity`."""
    # versions of the packages that computed
    versions: Mapping[str, str] = field(default_factory=dict)
    # given by a person who asked for it; a named checkpoint is never removed
    name: str | None = None
    format: int = FORMAT

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())

    def write(self, folder: Path) -> None:
        """Seal ``folder``; the last file of a checkpoint."""
        content = asdict(self)
        storage.write_json(folder / MANIFEST, {**content, "check": _hash(content)})


def read(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint. Raises ValueError, with the damage, if none can be read."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"it has no {MANIFEST}: its save did not come to its end") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"its {MANIFEST} cannot be read ({error})") from error
    try:
        if content.pop("check") != _hash(content):
            raise ValueError(f"its {MANIFEST} is damaged: its check sum is another")
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, this version reads {FORMAT}")
        files = {name: Entry(**entry) for name, entry in content.pop("files").items()}
        # The check sum is no signature: a manifest that was written by hand may have the right one.
        unsafe = [name for name in files if name.startswith("/") or ".." in Path(name).parts]
        if unsafe:
            raise ValueError(f"its {MANIFEST} names files outside of it: {', '.join(unsafe)}")
        if _COMMITTED.fullmatch(folder.name) and step_of(folder) != content["step"]:
            raise ValueError(
                f"its {MANIFEST} is of step {content['step']}: it belongs to another checkpoint"
            )
        return Manifest(files=files, **content)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its {MANIFEST} is damaged ({type(error).__name__}: {error})") from error


def missing_files(folder: Path, manifest: Manifest) -> list[str]:
    """List files that are missing, of another size, or foreign."""
    faults = []
    present = _present(folder)
    for name, entry in manifest.files.items():
        path = present.pop(name, None)
        # a link may point to a file that changes
        if path is None or path.is_symlink():
            faults.append(f"{name} is missing")
        elif path.stat().st_size != entry.size:
            faults.append(f"{name} has {path.stat().st_size:,} bytes instead of {entry.size:,}")
    present.pop(MANIFEST, None)
    return [*faults, *map("{} does not belong to it".format, sorted(present))]


def _present(folder: Path) -> dict[str, Path]:
    """Return the files in a folder by their path within it."""
    present = {}
    for path in folder.rglob("*"):
        if not path.is_dir():
            present[path.relative_to(folder).as_posix()] = path
    return present


def check_outside(name: str, folder: Path) -> list[Problem]:
    """Check that the new ``folder``, given as option ``name``, is in no checkpoint."""
    for parent in folder.absolute().resolve().parents:
        if _COMMITTED.fullmatch(parent.name) and (parent / MANIFEST).is_file():
            wrong = f"it is inside the checkpoint {parent.name}, which must not change"
            return [Problem(name, str(folder), wrong, "name a new folder elsewhere")]
    return []


def foreign_files(folder: Path) -> list[str]:
    """List the files of a folder ``checkpoint-N`` that no run of this stack is known to have written: all of them where
    no manifest can be read."""
    try:
        known = {*read(folder).files, MANIFEST}
    except (OSError, ValueError):
        known = set()
    return sorted(_present(folder).keys() - known)


def corrupt_files(
    folder: Path, manifest: Manifest, names: Collection[str] | None = None
) -> list[str]:
    """Read files whole (``names``, default all) and return those whose hash is not the manifest's."""
    faults = []
    for name in manifest.files if names is None else names:
        try:
            if storage.digest(folder / name) != manifest.files[name].sha256:
                faults.append(f"{name} is damaged: its SHA-256 is another")
        except OSError as error:
            faults.append(f"{name} cannot be read ({error.strerror})")
    return faults


def entry(path: Path) -> Entry:
    return Entry(path.stat().st_size, storage.digest(path))


def commit(aside: Path, folder: Path, manifest: Manifest) -> None:
    """Turn the complete folder ``aside`` into the checkpoint ``folder``. Raises ValueError if it does not hold exactly
    the manifest's files. An older folder of this name is replaced; with a file in it that is no run's, it is moved."""
    if faults := missing_files(aside, manifest):
        raise ValueError(f"{aside.name} is not complete: {'; '.join(faults)}")
    manifest.write(aside)
    if folder.exists() and foreign_files(folder):
        _move_away(folder)
    replace(aside, folder)


def replace(aside: Path, folder: Path) -> None:
    """Rename ``aside`` to ``folder``, its files on the disk already. An older folder of this name is renamed first and
    removed last; :func:`tidy` restores a checkpoint after a kill in between."""
    # A file is on the disk under its name only when its folder is as well.
    for inner in filter(Path.is_dir, aside.rglob("*")):
        storage.sync(inner)
    replaced = folder.with_name(folder.name + REPLACED)
    if folder.exists():
        _delete(replaced)
        os.rename(folder, replaced)
    try:
        # the one rename that counts
        os.rename(aside, folder)
    except OSError:
        if replaced.exists():
            os.rename(replaced, folder)
        raise
    storage.sync(folder.parent)
    _delete(replaced)


def numbered(output: Path) -> list[Path]:
    """Return folders named as checkpoints, the oldest first."""
    folders = []
    for path in output.glob("checkpoint-*"):
        if _COMMITTED.fullmatch(path.name) and path.is_dir():
            folders.append(path)
    # by step: by name, checkpoint-1000 would come before checkpoint-200
    return sorted(folders, key=step_of)


def committed(output: Path) -> list[Path]:
    """Return sealed checkpoints, the oldest first; their files may still be damaged."""
    return [folder for folder in numbered(output) if (folder / MANIFEST).is_file()]


def step_of(folder: Path) -> int:
    match = _COMMITTED.fullmatch(folder.name)
    assert match is not None, folder
    return int(match[1])


def name_of(folder: Path) -> str | None:
    try:
        return read(folder).name
    except ValueError:
        return None


def tidy(output: Path) -> list[str]:
    """Remove what a killed save, replacement or removal left, and restore a checkpoint or trained weights that were not
    replaced.

    Only for the holder of the run's lock. Returns a line for each.
    """
    done = []
    # a list: the loop renames and removes in the folder that it reads
    for path in list(output.glob("*")):
        if not (_ASIDE.fullmatch(path.name) and path.is_dir()):
            continue
        original = path.with_name(path.name.removesuffix(REPLACED))
        if path.name.endswith(REPLACED) and not original.exists():
            os.rename(path, original)
            done.append(f"{original.name} restored: what was to replace it was not finished")
        else:
            _delete(path)
            if path.name.endswith(WRITING):
                done.append(f"{path.name} removed: a save that was not finished")
    return done


def remove(folder: Path) -> None:
    """Remove a checkpoint; after the rename it no longer counts as one, however long the rest takes."""
    removed = folder.with_name(folder.name + REMOVED)
    os.rename(folder, removed)
    _delete(removed)


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        # the next `tidy` removes the rest
        shutil.rmtree(path, ignore_errors=True)


def abandon(output: Path, resumed: Path, step: int) -> list[Path]:
    """Rename the checkpoints after ``step``, named ones too, once a run has resumed there; return their new paths.

    They are damaged, or of steps that are taken again: they must neither be found as the newest nor displace new ones.
    """
    moved = []
    for folder in numbered(output):
        if step_of(folder) > step and folder.resolve() != resumed.resolve():
            moved.append(_move_away(folder))
    return moved


def _move_away(folder: Path) -> Path:
    """Rename a checkpoint to a free name ``checkpoint-N.abandoned``, and return its new path."""
    place = folder.with_name(folder.name + ABANDONED)
    count = 1
    while place.exists():
        count += 1
        place = folder.with_name(f"{folder.name}{ABANDONED}-{count}")
    os.rename(folder, place)
    return place


def retain(
    output: Path, limit: int | None, every: int | None = None, steps: Collection[int] = ()
) -> list[Path]:
    """Remove all checkpoints but the newest ``limit`` (None: all), those of steps that ``every`` divides or that are in
    ``steps``, named ones, and those with a file that is no run's. Returns the removed ones."""
    gone = []
    for folder in committed(output)[:-limit] if limit is not None else []:
        step = step_of(folder)
        if step in steps or (every and step % every == 0) or name_of(folder) is not None:
            continue
        if foreign_files(folder):
            continue
        remove(folder)
        gone.append(folder)
    return gone


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
