"""The way back from a checkpoint, in order:

1. :func:`choose`: which checkpoint a run resumes; verified by all ranks, before a model is loaded.
2. :func:`require_fitting`: whether this job's engine and ranks can read it. Whether it is of the same run is
   :mod:`tape_ds.training.identity`'s question.
3. :func:`restore`: weights, the engine's or the optimizer's state, schedule and scaler, into a prepared trainer.
4. :func:`rank_state`: sums that the training loop sets to zero after that, before its first step.

``resume_from_checkpoint`` is a folder, true (the newest committed checkpoint of output_dir) or auto (the same, or a new
start where there is none). A named folder must be whole. For the newest, damaged ones are passed over for older ones,
and a message names them and the damage.
"""

import json
import pickle
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers.trainer import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, safe_globals

from tape_ds import checkpoint
from tape_ds.checkpoint import Manifest, saving, trained
from tape_ds.checkpoint.resharding import load_engine
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, raise_if_any

FIELD = "resume_from_checkpoint"
AUTO = "auto"


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a job resumes."""

    folder: Path
    manifest: Manifest
    passed_over: list[str] = field(default_factory=list)
    """Newer ones that are not whole, each with its damage."""


def choose(requested: str | bool | None, output: Path, rank_sync: RankSync) -> Resumed | None:
    """Return the checkpoint to resume (a folder, True, "auto", or False or None for none), every byte of it verified;
    None for a new start. All ranks must call it, and are refused alike."""
    if not requested:
        return None
    if requested not in (True, AUTO):
        folder = Path(str(requested)).expanduser()
        manifest, damage = _verified(folder, rank_sync)
        if manifest is not None:
            return Resumed(folder, manifest)
        remedy = "give another folder checkpoint-N, or restore this one from a copy"
        # the first rank's list: another machine may see a folder of a shared disk later, and all must verify the same
        for name in rank_sync.first(_newest_first(folder.parent)):
            if name == folder.name:
                continue
            if _verified(folder.parent / name, rank_sync)[0] is not None:
                remedy = (
                    f"use {folder.parent / name}, which is whole, or --resume auto, which finds it"
                )
                break
        raise UserError(Problem(FIELD, str(folder), damage, remedy))

    passed_over: list[str] = []
    for name in rank_sync.first(_newest_first(output)):
        manifest, damage = _verified(output / name, rank_sync)
        if manifest is not None:
            return Resumed(output / name, manifest, passed_over)
        passed_over.append(f"{name}: {damage}")
    if passed_over:
        wrong = f"none of its checkpoints is whole: {'; '.join(passed_over)}"
        remedy = "restore one from a copy, or start in another output_dir"
        raise UserError(Problem(FIELD, requested, f"{output}: {wrong}", remedy))
    if requested is True:
        remedy = "give the folder of a checkpoint, or auto to start a new run where there is none"
        raise UserError(Problem(FIELD, True, f"{output} holds no committed checkpoint", remedy))
    return None


def _newest_first(output: Path) -> list[str]:
    return [folder.name for folder in reversed(checkpoint.numbered(output))]


def _verified(folder: Path, rank_sync: RankSync) -> tuple[Manifest | None, str]:
    """Return the manifest of a whole checkpoint, or None and its damage. The first rank lists the files; each is read
    by one rank, and by those that will load it."""
    manifest: Manifest | None = None
    faults: list[str] = []
    try:
        manifest = checkpoint.read(folder)
        if rank_sync.rank == 0:
            faults = checkpoint.missing_files(folder, manifest)
    except ValueError as error:
        faults = [str(error)]
    except OSError as error:
        # perhaps on this rank alone: the others must learn of it
        faults = [f"it cannot be read ({error.strerror or error})"]
    faults = list(chain.from_iterable(rank_sync.objects(faults)))
    if not faults and manifest is not None:
        files = read_by(rank_sync.rank, rank_sync.world, manifest.files)
        faults = checkpoint.corrupt_files(folder, manifest, files)
        faults = list(chain.from_iterable(rank_sync.objects(faults)))
    if faults or manifest is None:
        # several ranks may find the same
        return None, "; ".join(dict.fromkeys(faults))
    return manifest, ""


def read_by(rank: int, world: int, files: Collection[str]) -> list[str]:
    """Return the files that a rank verifies: its share of all, and those that it will load. A stage up to 2 has the
    model's states once for all ranks, stage 3 in a file for each."""
    names = []
    for number, name in enumerate(sorted(files)):
        is_loaded = name in (f"rng_state_{rank}.pth", f"rank_state_{rank}.json")
        is_loaded |= f"zero_pp_rank_{rank}_" in name
        is_loaded |= "model_states" in name and "zero_pp_rank_" not in name
        if is_loaded or number % world == rank:
            names.append(name)
    return names


def require_fitting(resumed: Resumed | None, stage: int | None, tensor: int = 1) -> None:
    """Check that a job at this ZeRO stage, with ``tensor`` processes that share a model, can read the engine's state.
    Shards of stages 1, 2 and 3 load at each of them, on any number of processes (:mod:`.resharding`)."""
    if resumed is None:
        return
    manifest = resumed.manifest
    problems = []
    new_run = "or start a new run from its weights (tape-ds consolidate)"
    if (manifest.stage is None) != (stage is None):
        wrong = "saved without an engine, and this job has one"
        if stage is None:
            wrong = "saved with DeepSpeed, not without it"
        problems.append(
            Problem(FIELD, str(resumed.folder), wrong, f"resume as it was saved; {new_run}")
        )
    elif bool(manifest.stage) != bool(stage):
        wrong = f"it was saved at ZeRO stage {manifest.stage}, and this job's is {stage}"
        problems.append(
            Problem(
                FIELD, str(resumed.folder), wrong, f"deepspeed: zero{manifest.stage}; {new_run}"
            )
        )
    if manifest.tensor != tensor:
        wrong = (
            f"it was saved with tensor_parallel_size {manifest.tensor}, and this job's is {tensor}"
        )
        remedy = f"tensor_parallel_size: {manifest.tensor}, {new_run}"
        problems.append(Problem(FIELD, str(resumed.folder), wrong, remedy))
    raise_if_any(problems)


def describe(resumed: Resumed, differences: list[Any]) -> list[str]:
    return [
        *map("not used: {}".format, resumed.passed_over),
        *map("resuming with another value: {}".format, differences),
        f"resuming from {resumed.folder} (step {resumed.manifest.step})",
    ]


def restore(trainer: Any, folder: Path) -> None:
    """Load a checkpoint into a :class:`tape_ds.training.trainer.TapeTrainer` whose model, optimizer and schedule were
    just made from the recipe; all ranks must call it. transformers' own way would ask for every weight of the model,
    frozen ones included."""
    # Refuse files that hold more than tensors and plain values: loading would run the functions that they name.
    # transformers refuses too, but in the middle of a start, and with an error about pickles alone.
    for name in (trainer.rng_file, OPTIMIZER_NAME, SCHEDULER_NAME, SCALER_NAME):
        path = folder / name
        if not path.is_file():
            continue
        try:
            # mapped where torch can, so that the file is not read twice
            with safe_globals():
                torch.load(
                    path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
                )
        except pickle.UnpicklingError as error:
            # torch's first sentence: those after it advise to load the file without the check
            reason = str(error).partition(". ")[0]
            wrong = f"{name} in it holds more than states, and was not loaded ({reason})"
            raise saving.refusal(str(folder), ValueError(wrong)) from error
    if differing := trained.differences(folder, trainer.model, trainer.record):
        wrong = f"it was saved by a run that differs in {', '.join(differing)}"
        remedy = "resume with the recipe of that run, or start in another output_dir"
        raise UserError(Problem(FIELD, str(folder), wrong, remedy))

    # Optimizers and schedulers store their settings with their states, and loading would bring both back: a run with
    # another learning rate (resume_anyway) would announce the new one and train with the old.
    optimizer = trainer.optimizer
    # accelerate wraps it
    schedule = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    settings = []
    for group in optimizer.param_groups:
        names = group.keys() & {"weight_decay", "betas", "eps"}
        settings.append({name: group[name] for name in names})
    rates = list(schedule.base_lrs) if hasattr(schedule, "lr_lambdas") else None

    if trainer.is_deepspeed_enabled:
        job = {name: trainer.saver.about[name] for name in ("processes", "stage")}
        load_engine(trainer.model_wrapped, folder, trainer.state.global_step, **job)
    else:
        trained.apply_trained(folder, trainer.model, trainer.record.names)
    trainer._load_optimizer_and_scheduler(str(folder))
    trainer._load_scaler(str(folder))

    for group, of_recipe in zip(optimizer.param_groups, settings, strict=True):
        group.update(of_recipe)
    if rates is not None:
        step = schedule.last_epoch
        scales = schedule.lr_lambdas
        for group, rate, scale in zip(optimizer.param_groups, rates, scales, strict=True):
            group["initial_lr"] = rate
            group["lr"] = rate * scale(step)
        schedule.base_lrs = rates
        schedule._last_lr = [group["lr"] for group in optimizer.param_groups]


def rank_state(folder: Path, rank_sync: RankSync) -> dict[str, Any] | None:
    """Return the sums and counters that a rank continues from, numbers to the last digit; None in older checkpoints.
    All ranks must call it.

    Where another number of ranks saved, this rank's sums are the mean over theirs; the rest is the same on all ranks.
    """
    count = len(list(folder.glob("rank_state_*.json")))
    if not count:
        return None
    # each rank reads two files at most: all of all of them would be as many as the square of their number
    if count == rank_sync.world:
        return _continued(_state_of(folder, 0), [_state_of(folder, rank_sync.rank)])
    continued: dict[str, Any] | None = None
    if rank_sync.rank == 0:
        states = [_state_of(folder, number) for number in range(count)]
        continued = _continued(states[0], states)
    given: dict[str, Any] = rank_sync.first(continued)
    return given


def _state_of(folder: Path, rank: int) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(
        (folder / f"rank_state_{rank}.json").read_text(encoding="utf-8")
    )
    return state


def _continued(first: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of the sums of ``states``, and what rank ``first`` has for all."""
    losses = []
    parts = []
    places = []
    for state in states:
        # hexadecimal, because a decimal text would round
        losses.append(float.fromhex(state["loss"]))
        parts.append(list(map(float.fromhex, state.get("parts", ()))))
        # only streams note where they are
        if state.get("places"):
            places.append(state["places"])
    return {
        **first,
        "loss": sum(losses) / len(states),
        "total_loss": float.fromhex(first["total_loss"]),
        "parts": torch.tensor(parts).mean(dim=0),
        "places": places,
    }
