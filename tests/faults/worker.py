"""A launcher with a fault inside: what DeepSpeed starts on every rank in the launcher's place.

``$FAULT`` is JSON: ``launcher`` (the script whose ``main`` is run), ``act``, and what that act needs. A *point* is a
function that saving calls, counted only while a save is on its way.

    count      count the calls of every point; ``into``: the folder for ``calls-RANK.json``
    kill       SIGKILL to itself at call ``call`` of ``point`` on ``rank``, ``when`` "before", "amid" or "after" it
    fail       OSError ``errno`` at every call from ``call`` on of ``point`` on ``rank`` within save number ``save``;
               "*": of every point that changes a disk, on every rank
    slow       every fsync takes ``seconds``
    nan        one gradient (``what`` "gradient") or the loss ("loss") of ``rank`` is NaN at each step of ``steps``
    hang       ``rank`` waits for ever where it reads sample number ``sample``
"""

import functools
import json
import os
import runpy
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULT = json.loads(os.environ["FAULT"])
RANK = int(os.environ["RANK"])
CHANGES = (
    "os.rename",
    "os.replace",
    "os.mkdir",
    "torch.save",
    "Path.write_text",
    "tape_ds.checkpoint.trained.save_file",
)
saving = 0
"""Saves on their way."""
saves = 0
"""Saves begun."""
counts: Counter[str] = Counter()
"""Calls of each point, over all saves."""
counts_of_save: Counter[str] = Counter()
"""Calls of each point since the last save began."""


def main() -> None:
    """Put the fault in place, then be the launcher."""
    _around_saves()
    {"nan": _poison, "hang": _hang}.get(FAULT["act"], _patch_points)()
    if FAULT["act"] == "count":
        import atexit

        atexit.register(_write_counts)
    runpy.run_path(FAULT["launcher"], run_name="__main__")


def _around_saves() -> None:
    """Know when a save is on its way: from its beginning until it is committed, in the background too."""
    from tape_ds.checkpoint.saving import Saver
    from tape_ds.training.trainer import TapeTrainer

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            global saving
            saving += 1
            try:
                return function(*args, **kwargs)
            finally:
                saving -= 1

        return wrapped

    save, finish = TapeTrainer._save_checkpoint, Saver.finish

    def begin(*args: Any, **kwargs: Any) -> Any:
        global saves
        saves += 1
        counts_of_save.clear()
        return within(save)(*args, **kwargs)

    TapeTrainer._save_checkpoint = begin
    Saver.finish = within(finish)


def _patch_points() -> None:
    import deepspeed.comm
    import torch

    from tape_ds import checkpoint, storage
    from tape_ds.checkpoint import format, trained

    for module, name in (
        *((os, "rename"), (os, "replace"), (os, "fsync"), (os, "mkdir"), (shutil, "rmtree")),
        *((torch, "save"), (trained, "save_file"), (Path, "write_text")),
        *((torch.distributed, "all_gather_object"), (torch.distributed, "broadcast_object_list")),
        *((torch.distributed, "all_gather"), (deepspeed.comm, "barrier")),
        *(
            (checkpoint, "commit"),
            (format, "remove"),
            (checkpoint, "entry"),
            (checkpoint.Manifest, "write"),
        ),
        (storage, "sync"),
    ):
        point = f"{getattr(module, '__name__', module)}.{name}"
        setattr(module, name, _watch(point, getattr(module, name)))


def _watch(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, counted, and with the fault where its turn has come."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not saving:
            return function(*args, **kwargs)
        counts[point] += 1
        counts_of_save[point] += 1
        return _act(point, counts[point], function, args, kwargs)

    return wrapped


def _act(point: str, call: int, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    act = FAULT["act"]
    if act == "slow" and point == "os.fsync":
        time.sleep(FAULT["seconds"])
    mine = FAULT.get("rank") == RANK and FAULT.get("point") == point
    refused = mine or (FAULT.get("point") == "*" and point in CHANGES)
    if (
        act == "fail"
        and refused
        and saves == FAULT["save"]
        and counts_of_save[point] >= FAULT["call"]
    ):
        raise OSError(FAULT["errno"], os.strerror(FAULT["errno"]), str(args[0]) if args else None)
    turn = act == "kill" and mine and call == FAULT["call"]
    if turn and FAULT["when"] == "before":
        _die(point, call)
    result = function(*args, **kwargs)
    if turn:
        if FAULT["when"] == "amid":
            _cut_short(args)
        _die(point, call)
    return result


def _die(point: str, call: int) -> None:
    Path(FAULT["note"]).write_text(f"{point} {call}")
    os.kill(os.getpid(), signal.SIGKILL)


def _cut_short(args: Any) -> None:
    """Leave half of the file that was being written."""
    for each in args:
        path = getattr(each, "name", each)
        if isinstance(path, str | Path) and Path(path).is_file():
            if hasattr(each, "flush"):
                each.flush()
            os.truncate(path, Path(path).stat().st_size // 2)


def _write_counts() -> None:
    folder = Path(FAULT["into"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"calls-{RANK}.json").write_text(json.dumps(counts))


def _poison() -> None:
    """Make numbers NaN on one rank, at the steps that are named."""
    import torch

    from tape_ds.training.trainer import TapeTrainer

    original = TapeTrainer.compute_loss

    @functools.wraps(original)
    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        if FAULT["rank"] != RANK or self.state.global_step not in FAULT["steps"]:
            return loss
        if FAULT["what"] == "loss":
            return loss * float("nan")
        loss.register_hook(lambda gradient: torch.full_like(gradient, float("nan")))
        return loss

    TapeTrainer.compute_loss = compute_loss


def _hang() -> None:
    """Let one rank wait for ever where it reads its data."""
    from tape_ds.training import run

    original = run.collate

    def collate(samples: Any, *args: Any, **kwargs: Any) -> Any:
        global _batches
        _batches += 1
        if FAULT["rank"] == RANK and _batches > FAULT["batches"]:
            while True:
                time.sleep(60)
        return original(samples, *args, **kwargs)

    run.collate = collate


_batches = 0

if __name__ == "__main__":
    main()
