"""Which checkpoint a run goes on from: chosen by rank 0, verified by all ranks, before a model is loaded.

``resume_from_checkpoint`` is a folder, true (the newest committed checkpoint of output_dir) or auto (the same, or a new
start where there is none). A folder that is named must be whole. Where the newest is asked for, damaged ones are passed
over for older ones, and a message says which and why.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape_ds import checkpoint
from tape_ds.checkpoint import Manifest
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, raise_if_any

FIELD = "resume_from_checkpoint"
AUTO = "auto"


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that this job goes on from."""

    folder: Path
    manifest: Manifest
    passed_over: list[str] = field(default_factory=list)
    """Newer ones that are not whole, each with what is wrong."""


def choose(given: str | bool | None, output: Path, rank_sync: RankSync) -> Resumed | None:
    """Return the checkpoint to go on from, every byte of it verified; None to start anew. All ranks must call it.

    Args:
        given: a checkpoint's folder, True, "auto", or False or None for none.
        output: the run's folder.
        rank_sync: of the job.

    Raises:
        UserError: the folder that was named is no whole checkpoint, or there is none; on all ranks alike.
    """
    if not given:
        return None
    if given not in (True, AUTO):
        folder = Path(str(given)).expanduser()
        manifest, wrong = _verified(folder, rank_sync)
        if manifest is None:
            raise UserError(Problem(FIELD, str(folder), wrong, _instead(folder, rank_sync)))
        return Resumed(folder, manifest)
    passed_over: list[str] = []
    for name in rank_sync.first([folder.name for folder in reversed(checkpoint.numbered(output))]):
        manifest, wrong = _verified(output / name, rank_sync)
        if manifest is not None:
            return Resumed(output / name, manifest, passed_over)
        passed_over.append(f"{name}: {wrong}")
    if passed_over:
        wrong = f"none of its checkpoints is whole: {'; '.join(passed_over)}"
        remedy = "restore one from a copy, or start in another output_dir"
        raise UserError(Problem(FIELD, given, f"{output}: {wrong}", remedy))
    if given is True:
        remedy = "give the folder of a checkpoint, or auto to start anew where there is none"
        raise UserError(Problem(FIELD, True, f"{output} holds no committed checkpoint", remedy))
    return None


def _verified(folder: Path, rank_sync: RankSync) -> tuple[Manifest | None, str]:
    """Return the manifest of a whole checkpoint, or None and what is wrong with it. The first rank lists the files;
    each is read by one rank, and by those that will load it."""
    manifest: Manifest | None = None
    found: list[str] = []
    try:
        manifest = checkpoint.read(folder)
        if rank_sync.rank == 0:
            found = checkpoint.misfits(folder, manifest)
    except ValueError as error:
        found = [str(error)]
    except OSError as error:  # perhaps on this rank alone: the others must hear of it
        found = [f"it cannot be read ({error.strerror or error})"]
    everyones = [wrong for each in rank_sync.objects(found) for wrong in each]
    if not everyones and manifest is not None:
        found = checkpoint.damage(folder, manifest, read_by(rank_sync.rank, rank_sync.world, manifest.files))
        everyones = [wrong for each in rank_sync.objects(found) for wrong in each]
    if everyones or manifest is None:
        return None, "; ".join(dict.fromkeys(everyones))
    return manifest, ""


def read_by(rank: int, world: int, files: Collection[str]) -> list[str]:
    """Return the files that a rank verifies: its share of all, and what it will load. A stage up to 2 has the model's
    states once for all ranks, stage 3 in a file for each."""
    own = {f"rng_state_{rank}.pth", f"rank_state_{rank}.json"}
    return [
        name
        for number, name in enumerate(sorted(files))
        if number % world == rank
        or name in own
        or f"zero_pp_rank_{rank}_" in name
        or ("model_states" in name and "zero_pp_rank_" not in name)
    ]


def _instead(folder: Path, rank_sync: RankSync) -> str:
    """Return the remedy: another checkpoint of the same run, the newest that is whole before this one."""
    others = [each.name for each in reversed(checkpoint.numbered(folder.parent)) if each.name != folder.name]
    for name in rank_sync.first(others):
        if _verified(folder.parent / name, rank_sync)[0] is not None:
            return f"use {folder.parent / name}, which is whole, or --resume auto, which finds it"
    return "give another folder checkpoint-N, or restore this one from a copy"


def require_fitting(resumed: Resumed | None, stage: int | None, tensor: int = 1) -> None:
    """Whether a job at this ZeRO stage, with ``tensor`` processes that share a model, can read the engine's state.

    Shards of stages 1, 2 and 3 go on at each of them, on any number of processes (:mod:`.resharding`).

    Raises:
        UserError: it cannot; names the way out.
    """
    if resumed is None:
        return
    manifest, problems = resumed.manifest, []

    def refuse(wrong: str, remedy: str) -> None:
        problems.append(Problem(FIELD, str(resumed.folder), wrong, remedy))

    anew = "start anew from its weights (tape-ds consolidate)"
    if (manifest.stage is None) != (stage is None):
        without = manifest.stage is None
        wrong = "saved without an engine, and this job has one" if without else "saved with DeepSpeed, not without it"
        refuse(wrong, f"resume as it was saved; or {anew}")
    elif bool(manifest.stage) != bool(stage):
        wrong = f"it was saved at ZeRO stage {manifest.stage}, and this job's is {stage}"
        refuse(wrong, f"deepspeed: zero{manifest.stage}; or {anew}")
    if manifest.tensor != tensor:
        wrong = f"it was saved with tensor_parallel_size {manifest.tensor}, and this job's is {tensor}"
        refuse(wrong, f"tensor_parallel_size: {manifest.tensor}, or {anew}")
    raise_if_any(problems)


def describe(resumed: Resumed, differences: list[Any]) -> list[str]:
    """Return what a person should know of a resume, a line each."""
    lines = [f"not used: {each}" for each in resumed.passed_over]
    lines += [f"going on with another value: {each}" for each in differences]
    return [*lines, f"resuming from {resumed.folder} (step {resumed.manifest.step})"]
