"""Saving: every rank writes its part of an unfinished folder; when all parts are on the disk, one rename commits it.

A disk that fails costs the save and never the run. A rank keeps its trouble until all ranks have finished their parts,
since the engine's own saving has collectives that all must reach; then it is reported, the unfinished folder is
removed, and training continues with the older checkpoints.

With ``background``, the engine's files (by far the most of a checkpoint) are copied to the CPU's memory and written by
a thread during training; at each step's end the trainer asks whether all ranks are done, and commits then. One save is
pending at a time: the next one, and the end of the run, wait for it.
"""

import contextlib
import copy
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.constants import (
    UNIVERSAL_CHECKPOINT_INFO,
    UNIVERSAL_CHECKPOINT_VERSION_KEY,
    UNIVERSAL_CHECKPOINT_VERSION_VALUE,
)
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from tape_ds import checkpoint, storage
from tape_ds.checkpoint import Entry, Manifest, engine_state
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError

SPARE = 16 * 2**20
"""Bytes that must remain free after a checkpoint, for logs and small files."""


@dataclass
class SavedPart:
    """One rank's files of a checkpoint, in the unfinished ``folder``. With ``background`` a thread writes them, and
    their contents must not change meanwhile."""

    folder: Path
    background: bool
    trouble: str | None = None
    """Reason why this rank could not write its part."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Of the files written so far, by their path in the folder."""
    mistake: Exception | None = None
    """Error of a background file that is no trouble with a disk."""
    _tasks: list[tuple[str, Callable[[Path], Any]]] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def write(self, name: str, task: Callable[[Path], Any], *, at_once: bool = False) -> None:
        """Write a file, in the background if there is one, unless ``at_once``: ``task`` gets its path."""
        if self.background and not at_once:
            self._tasks.append((name, task))
            return
        path = self.folder / name

        def write_file() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            task(path)
            storage.sync(path)
            self.entries[name] = checkpoint.entry(path)

        self.attempt(write_file)

    def attempt(self, task: Callable[[], Any]) -> None:
        """Run ``task`` now, which writes into the folder. Either it has no collectives, or all ranks run it, and it
        fails on none of them before those."""
        if self.trouble is not None:
            return
        try:
            task()
        except Exception as error:
            self.trouble = storage.trouble(error, self.folder)
            # no trouble with a disk, but a mistake in the program
            if self.trouble is None:
                raise

    def go(self) -> None:
        """Start to write the files that were left for the background."""
        if not self._tasks:
            return

        def write_all() -> None:
            try:
                while self._tasks:
                    # out of the list, so that memory is given back
                    self.write(*self._tasks.pop(0), at_once=True)
            except Exception as error:
                self.mistake = error

        self._thread = threading.Thread(target=write_all, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


class EngineFiles(TorchCheckpointEngine):
    """Makes a DeepSpeed ``engine`` save its files as part of a checkpoint, and load them without executing anything."""

    def __init__(self, engine: Any = None) -> None:
        super().__init__()
        self.part: SavedPart | None = None
        """Of the checkpoint that is being saved."""
        if engine is not None:
            engine.checkpoint_engine = self
            # tape-ds consolidate does the same, and verifies
            engine._copy_recovery_script = lambda folder: None

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: folders are made with the files in them."""

    def save(self, state_dict: Any, path: str) -> None:
        assert self.part is not None
        content = _copied(state_dict) if self.part.background else state_dict
        name = Path(path).relative_to(self.part.folder).as_posix()
        self.part.write(name, lambda target: save_pickle(content, target))

    def load(self, path: str, map_location: Any = None) -> Any:
        try:
            return engine_state.load(Path(path), mmap=False)
        except ValueError as error:
            raise refusal(path, error) from error


def save_engine(
    engine: Any, part: SavedPart, step: int, tensor_parallel: Mapping[str, Any]
) -> None:
    """Make the engine, which has :class:`EngineFiles`, write its part of the checkpoint of ``step``.

    ``tensor_parallel`` is what :data:`.engine_state.TENSOR_PARALLEL` names.
    """
    engine.checkpoint_engine.part = part
    info = {UNIVERSAL_CHECKPOINT_VERSION_KEY: UNIVERSAL_CHECKPOINT_VERSION_VALUE}
    engine.save_checkpoint(
        str(part.folder),
        tag=f"global_step{step}",
        client_state={
            UNIVERSAL_CHECKPOINT_INFO: info,
            engine_state.TENSOR_PARALLEL: tensor_parallel,
        },
        save_latest=False,
        exclude_frozen_parameters=True,
    )
    engine.checkpoint_engine.part = None


def refusal(
    path: str, error: ValueError, remedy: str = "use another checkpoint, of a run of your own"
) -> UserError:
    """Return the error for engine files that cannot be loaded, perhaps on one rank alone."""
    refused = UserError(Problem("resume_from_checkpoint", path, str(error), remedy))
    refused.on_one_rank = True
    return refused


def save_pickle(content: Any, path: Path) -> None:
    # by an open file, so that a full disk is an OSError
    with path.open("wb") as file:
        torch.save(content, file)


def _copied(content: Any) -> Any:
    """Copy all tensors to the CPU: the originals are changed by the next step."""
    if isinstance(content, torch.Tensor):
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return type(content)((key, _copied(value)) for key, value in content.items())
    if type(content) in (list, tuple):
        return type(content)(_copied(value) for value in content)
    # a loss scaler, for one
    return copy.deepcopy(content)


@dataclass
class Saver:
    """Saves the checkpoints of one run; unless noted, all ranks must call every method."""

    output: Path
    """The run's folder."""
    rank_sync: RankSync
    about: Mapping[str, Any]
    """Fields of every :class:`Manifest`."""
    keep: Mapping[str, Any]
    """Arguments of :func:`checkpoint.retain`."""
    say: Callable[[str], None]
    """Prints a message, on rank 0."""
    background: bool = False
    """Write the engine's files during training."""
    failed: int = 0
    """Saves that failed because of a disk."""
    _pending: tuple[int, str | None, SavedPart, float] | None = None
    """Step, name, this rank's part and time of the begin."""

    def begin(self, step: int, need: int, name: str | None = None) -> SavedPart | None:
        """Make the folder of a new checkpoint; None (and a message) if there is no room for ``need`` bytes, or as many
        as the last one has. A checkpoint with a ``name`` is never removed."""
        self.finish()
        aside = self.output / f"checkpoint-{step}{checkpoint.WRITING}"
        trouble: str | None = None
        if self.rank_sync.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            try:
                # the last checkpoint's size, if it can be read
                with contextlib.suppress(ValueError):
                    for last in checkpoint.committed(self.output)[-1:]:
                        need = max(need, checkpoint.read(last).size)
                need += SPARE
                free = storage.free_bytes(self.output)
                if free < need:
                    trouble = (
                        f"the disk of {self.output} has {storage.size(free)} free, and a checkpoint needs about "
                        f"{storage.size(need)}: {storage.size(need - free)} are missing"
                    )
                else:
                    aside.mkdir(parents=True)
            except OSError as error:
                trouble = storage.explain(error, self.output)
        trouble = self.rank_sync.first(trouble)
        if trouble is not None:
            self._give_up(step, trouble)
            return None
        part = SavedPart(aside, self.background)
        self._pending = step, name, part, time.monotonic()
        return part

    @property
    def done(self) -> bool:
        """Whether this rank's part of a pending save is written; True without one. May differ between ranks."""
        return self._pending is None or self._pending[2].done

    @property
    def pending(self) -> bool:
        """Whether a save is pending; the same on all ranks."""
        return self._pending is not None

    def finish(self) -> Path | None:
        """Wait for a pending save and commit it; return the checkpoint, or None where there was none or it failed.

        Raises a rank's :attr:`SavedPart.mistake` there, and RuntimeError on the others.
        """
        if self._pending is None:
            return None
        step, name, part, started = self._pending
        # first, so that a save that fails is not waited for once more
        self._pending = None
        part.wait()
        mistake = None if part.mistake is None else repr(part.mistake)
        parts = self.rank_sync.objects((part.trouble, part.entries, mistake))
        # after the exchange, which the others would wait for
        if part.mistake is not None:
            raise part.mistake
        files: dict[str, Entry] = {}
        troubles = []
        for rank, (trouble_there, entries, mistake_there) in enumerate(parts):
            if mistake_there is not None:
                raise RuntimeError(
                    f"rank {rank} could not write its part of checkpoint-{step}: {mistake_there}"
                )
            files |= entries
            if trouble_there:
                troubles.append(f"rank {rank}: {trouble_there}")
        trouble = "; ".join(troubles)
        folder: Path | None = None
        if self.rank_sync.rank == 0:
            # whatever goes wrong here is sent to the other ranks, which wait below
            try:
                if not trouble:
                    folder = self._commit(step, name, part.folder, files, started)
            except (OSError, ValueError) as error:
                trouble = storage.trouble(error, self.output) or str(error)
            if folder is None:
                shutil.rmtree(part.folder, ignore_errors=True)
        folder, trouble = self.rank_sync.first((folder, trouble))
        if trouble:
            self._give_up(step, trouble)
        return folder

    def _commit(
        self,
        step: int,
        name: str | None,
        aside: Path,
        files: dict[str, Entry],
        started: float,
    ) -> Path:
        """Seal and rename on rank 0, and remove older checkpoints; return the checkpoint."""
        # files outside the ranks' parts: the trained weights, and transformers' files
        for path in sorted(filter(Path.is_file, aside.rglob("*"))):
            file = path.relative_to(aside).as_posix()
            if file not in files:
                storage.sync(path)
                files[file] = checkpoint.entry(path)
        folder = self.output / f"checkpoint-{step}"
        manifest = Manifest(
            step=step, files=files, name=name or checkpoint.name_of(folder), **self.about
        )
        checkpoint.commit(aside, folder, manifest)
        self.say(
            f"{folder.name} committed: {storage.size(manifest.size)} in {time.monotonic() - started:.1f} s"
        )
        try:
            removed = checkpoint.retain(self.output, **self.keep)
            if removed:
                names = ", ".join(each.name for each in removed)
                self.say(f"removed {names}: save_total_limit = {self.keep['limit']}")
        except OSError as error:
            self.say(
                f"an older checkpoint could not be removed: {storage.explain(error, self.output)}"
            )
        return folder

    def _give_up(self, step: int, trouble: str) -> None:
        self.failed += 1
        if self.rank_sync.rank:
            return
        kept = ", ".join(folder.name for folder in checkpoint.committed(self.output))
        self.say(
            f"step {step}: CHECKPOINT NOT SAVED ({self.failed} so far): {trouble}. Training continues; "
            f"there is {kept or 'no earlier checkpoint'}. "
            "Make room, and the next save is tried as usual"
        )


def need(trained: int, element_bytes: int, engine: bool) -> int:
    """Return the approximate bytes of a checkpoint: AdamW's two moments in fp32, an engine's fp32 weights, and the
    folder of trained weights; frozen parameters are not saved."""
    return trained * (8 + 4 * engine + 2 * element_bytes)
