"""The contents of a run's folder before a run begins there: nothing of them is replaced or removed unasked.

A folder is an earlier run's if it has that run's records: a marker (:data:`tape_ds.run_folder.BEGUN`, written before
anything else, or :data:`tape_ds.run_folder.FINISHED`), a sealed checkpoint, or metrics whose every line has what
versions before that marker wrote as well: such a run, killed before its first checkpoint, left nothing else. Files
with a run's names are then that run's, and in ``trained`` those that its list has (of an older version, which kept
none, those with the names of trained weights and tokenizers). Everything else where a run would write is a person's: no
option removes it.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_ds import checkpoint, run_folder
from tape_ds.config.recipe import Recipe
from tape_ds.errors import Problem
from tape_ds.numbers import some
from tape_ds.resilience import run_lock
from tape_ds.training import identity

SHOWN = 8
"""Names in a message."""
_VALUED = (run_folder.METRICS, run_folder.NONFINITE, run_folder.FINISHED)
# a start that came to nothing leaves these
_LEFT_OVER = (run_folder.TRACKERS, run_folder.STOPPED, run_folder.BEGUN)
_MARKERS = (run_folder.BEGUN, run_folder.FINISHED, run_folder.STOPPED)

_IN_EVERY_LINE = {"step", "loss", "tokens_per_second", "memory_bytes", "skipped", "tokens"}
"""Of the metrics of every version, never left out."""


@dataclass(frozen=True)
class EarlierRun:
    """The contents of a run's folder; paths are within it."""

    output: Path
    checkpoints: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Files of an earlier run, without its checkpoints."""
    left_over: list[str] = field(default_factory=list)
    """Of an earlier run too, and without value once it has ended."""
    foreign: list[str] = field(default_factory=list)
    """Where a run would write, and by no run."""
    markers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def holds_something(self) -> bool:
        return bool(self.checkpoints or self.files)

    @property
    def identity(self) -> Mapping[str, Any] | None:
        """The facts that decide the run's numbers (:mod:`tape_ds.training.identity`); None if they are not known."""
        for name in (run_folder.BEGUN, run_folder.FINISHED):
            found = self.markers.get(name, {}).get("identity")
            if isinstance(found, dict):
                return found
        return None

    def step_of(self, marker: str) -> int | None:
        return self.markers.get(marker, {}).get("step")

    def __str__(self) -> str:
        """``checkpoints of an earlier run: checkpoint-4, checkpoint-6; and its finished, trained/ (8 files)``."""
        rest = ", ".join(grouped(self.files))
        if not self.checkpoints:
            return f"an earlier run's {rest}"
        named = f"checkpoints of an earlier run: {', '.join(self.checkpoints)}"
        if rest:
            return f"{named}; and its {rest}"
        return named


def grouped(names: Iterable[str]) -> list[str]:
    """Return names of files, those in folders as ``folder/ (3 files)``."""
    counts: dict[str, int] = {}
    for name in names:
        top, slash, _ = name.partition("/")
        counts[top + slash] = counts.get(top + slash, 0) + 1
    shown = []
    for name, count in sorted(counts.items()):
        files = "file" if count == 1 else "files"
        shown.append(f"{name} ({count} {files})" if name.endswith("/") else name)
    return shown


def look(output: Path) -> EarlierRun:
    """Return what a run's folder holds; it need not exist."""
    checkpoints = checkpoint.numbered(output)
    markers = {name: content for name in _MARKERS if (content := _marker(output, name)) is not None}
    is_a_run = (
        bool(markers)
        or any(_is_sealed(folder) for folder in checkpoints)
        or _has_run_s_metrics(output)
    )
    files: list[str] = []
    left_over: list[str] = []
    foreign: list[str] = []

    for name in (*_VALUED, *_LEFT_OVER):
        path = output / name
        if not _has_content(path):
            continue
        is_broken = name in _MARKERS and name not in markers
        if not is_a_run or is_broken or not path.is_file():
            foreign.append(name)
        else:
            (files if name in _VALUED else left_over).append(name)

    for folder, names in run_folder.OWN_FILES.items():
        own = [path for path in _entries(output / folder) if names.fullmatch(path.name)]
        (files if is_a_run else foreign).extend(f"{folder}/{path.name}" for path in own)

    if (output / run_folder.TRAINED).is_file():
        foreign.append(run_folder.TRAINED)
    listed = run_folder.trained_files(output)
    if listed is None:
        listed = run_folder.older_trained_files(output)
    for name in _files_below(output / run_folder.TRAINED):
        shown = f"{run_folder.TRAINED}/{name}"
        if is_a_run:
            files.append(shown)
        if not is_a_run or name not in listed:
            foreign.append(shown)
    for sealed in checkpoints:
        foreign += [f"{sealed.name}/{name}" for name in checkpoint.foreign_files(sealed)]
    return EarlierRun(
        output,
        checkpoints=[folder.name for folder in checkpoints],
        files=files,
        left_over=left_over,
        foreign=foreign,
        markers=markers,
    )


def check_new_start(found: EarlierRun, *, start_anew: bool, trains: bool) -> list[Problem]:
    """Return why no new run can begin in the folder. With ``start_anew`` only what no run wrote is in its way."""
    place = str(found.output)
    problems = []
    blocking = found.foreign
    # the message about the earlier run names the rest
    if not start_anew:
        named = {*found.files, *found.checkpoints}
        blocking = [
            name for name in blocking if name not in named and name.partition("/")[0] not in named
        ]
    if blocking:
        wrong = f"it holds what no run is known to have written: {some(blocking, SHOWN)}"
        remedy = "move that out of this folder, or give another output_dir"
        problems.append(Problem("output_dir", place, wrong, remedy))
    if found.holds_something and not start_anew:
        remedies = []
        if found.checkpoints and trains:
            remedies.append("--resume auto to resume it")
        elif (
            not found.checkpoints
            and run_folder.FINISHED not in found.markers
            and found.identity is not None
        ):
            remedies.append("--resume auto to begin the same run again")
        problems.append(Problem("output_dir", place, f"it holds {found}", _either(found, remedies)))
    return problems


def check_folder(recipe: Recipe, *, others_only: bool = False) -> list[Problem]:
    """Return why a run cannot begin in its folder, as far as one process sees without its data: another run is in it,
    or an earlier one's files are. A resumed run compares its identity later, of which its data are a part.
    ``others_only``: a run of this process is none.
    """
    output = recipe.trainer.folder
    taken = run_lock.refuse(output, others_only=others_only)
    if taken or recipe.trainer.resume_from_checkpoint:
        return taken
    return check_new_start(look(output), start_anew=recipe.safety.start_anew, trains=recipe.trains)


def is_finished(found: EarlierRun, now: Mapping[str, Any]) -> bool:
    """Return whether the folder is of a finished run with the identity ``now``."""
    if run_folder.FINISHED not in found.markers or found.identity is None:
        return False
    return all(each.name == identity.COMMIT for each in identity.differences(found.identity, now))


def check_same_run(
    found: EarlierRun, now: Mapping[str, Any], step: int, *, anyway: bool, trains: bool
) -> list[Problem]:
    """Return why a run with the identity ``now`` cannot begin at ``step`` in the folder, which has no checkpoint that
    it resumes. The same run can, if it began there at that step; with ``anyway`` also one with other values of harmless
    fields, unless the first has left its weights already."""
    if found.identity is None or not found.holds_something:
        return check_new_start(found, start_anew=False, trains=trains)
    has_trained = any(name.startswith(f"{run_folder.TRAINED}/") for name in found.files)
    refused = [
        each
        for each in identity.differences(found.identity, now)
        if each.name != identity.COMMIT and not (anyway and each.safe_to_change and not has_trained)
    ]
    reasons = [str(each) for each in refused]
    if run_folder.FINISHED in found.markers:
        reasons.append("it is finished")
    elif found.checkpoints or found.step_of(run_folder.BEGUN) != step:
        reasons.append("it did not begin there")
    if not reasons:
        return []
    wrong = f"it holds {found}, and this run cannot begin there: {'; '.join(reasons)}"
    return [Problem("output_dir", str(found.output), wrong, _either(found, []))]


def _either(found: EarlierRun, remedies: list[str]) -> str:
    """Join remedies with those of any new run."""
    remedies = [
        *remedies,
        *([] if found.foreign else ["--start_anew to remove that"]),
        "another output_dir",
    ]
    if len(remedies) > 1:
        return f"{', '.join(remedies[:-1])}, or {remedies[-1]}"
    return remedies[0]


def remove(found: EarlierRun) -> list[str]:
    """Remove an earlier run from its folder, its record :data:`tape_ds.run_folder.BEGUN` last, by which a removal that
    was killed can be repeated; return the names of what was kept in its folders."""
    assert not found.foreign, "refused before"
    for name in found.checkpoints:
        checkpoint.remove(found.output / name)
    folders = set()
    for name in [*found.files, *found.left_over]:
        if name != run_folder.BEGUN:
            path = found.output / name
            path.unlink(missing_ok=True)
            folders |= {parent for parent in path.parents if found.output in parent.parents}
    for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
        with contextlib.suppress(OSError):  # a person's files are in it
            folder.rmdir()
    (found.output / run_folder.BEGUN).unlink(missing_ok=True)
    kept = [found.output / folder for folder in run_folder.OWN_FILES]
    return [str(path.relative_to(found.output)) for folder in kept for path in _entries(folder)]


def keep_metrics(output: Path) -> Path | None:
    """Rename the metrics of an attempt that left no checkpoint, whose steps are taken again; return the new path."""
    path = output / run_folder.METRICS
    if not _has_content(path):
        return None
    count = 1
    while (place := path.with_name(f"{path.stem}-{count}{path.suffix}")).exists():
        count += 1
    path.rename(place)
    return place


def _marker(output: Path, name: str) -> dict[str, Any] | None:
    """Return a marker of :func:`tape_ds.run_folder.mark`; None for any other file of that name."""
    content = run_folder.read_marker(output / name) or {}
    if isinstance(content.get("step"), int) and name in content:
        return content
    return None


def _has_run_s_metrics(output: Path) -> bool:
    """Return whether every line of the metrics is a run's; the last may have been cut off by a full disk or a kill."""
    try:
        *lines, _ = (output / run_folder.METRICS).read_text(encoding="utf-8").split("\n")
        entries = [json.loads(line) for line in lines]
    except (OSError, ValueError, RecursionError):
        return False
    return bool(entries) and all(
        isinstance(entry, dict) and entry.keys() >= _IN_EVERY_LINE for entry in entries
    )


def _is_sealed(folder: Path) -> bool:
    try:
        checkpoint.read(folder)
    except (OSError, ValueError):
        return False
    return True


def _has_content(path: Path) -> bool:
    """Return whether something is at ``path`` that is no empty file."""
    if path.is_file():
        return path.stat().st_size > 0
    return os.path.lexists(path)


def _entries(folder: Path) -> list[Path]:
    if folder.is_dir():
        return sorted(folder.iterdir())
    return []


def _files_below(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in files)
