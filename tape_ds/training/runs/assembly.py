"""From a checked recipe to a run that is ready to train: one order for every kind of run.

A kind (:mod:`.extension`, :mod:`.finetuning`, :mod:`.generated`, :mod:`.pretraining`) supplies what differs: its
model's configuration, its sequences, its model and its scoring.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from transformers import set_seed

from tape_ds import checkpoint, methods
from tape_ds.checkpoint import load
from tape_ds.config import deepspeed_config
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.finetuning import ChatRecipe, ScrollsRecipe
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.data.sources.base import dated_identities
from tape_ds.distributed import comparison
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.planning import hardware, search
from tape_ds.planning.prediction import Plan
from tape_ds.planning.recipe_job import job_of, settle_here
from tape_ds.resilience import run_lock
from tape_ds.run_folder import finished
from tape_ds.training import device, identity
from tape_ds.training.environment import join_process_group, say
from tape_ds.training.run import Run, RunContext
from tape_ds.training.runs.extension import Extension
from tape_ds.training.runs.finetuning import ChatTuning, ScrollsTuning
from tape_ds.training.runs.generated import kind_of_task
from tape_ds.training.runs.pretraining import Pretraining

KINDS: Mapping[type[Recipe], type[Run]] = {
    ExtensionRecipe: Extension,
    PretrainingRecipe: Pretraining,
    ChatRecipe: ChatTuning,
    ScrollsRecipe: ScrollsTuning,
}


class NothingToDo(Exception):  # noqa: N818 - nothing went wrong
    """Raised on all ranks where ``resume: auto`` meets a finished run."""


def assemble(recipe: Recipe) -> Run:
    """Build everything up to the trainer. Raises UserError on all ranks alike, and :class:`NothingToDo`."""
    kind = kind_of_task(recipe) if isinstance(recipe, GeneratedRecipe) else KINDS[type(recipe)]
    context = kind.resolve(recipe)
    context = replace(context, recipe=settle_here(context.recipe, context.config))
    context = _start(context, partial(kind.fingerprints_of, context.recipe))
    run = kind.read(context)  # hours where text has to be tokenised, so everything that can refuse a run comes before
    # after the process group: under ZeRO-3 weights are sharded as they are made or loaded
    method = context.recipe.method if isinstance(context.recipe, ExtensionRecipe) else None
    prepared = methods.prepare(run.method, run.load_model(), method)
    run = replace(run, model=prepared.model, names=prepared.names)
    return replace(run, teacher=run.load_teacher())


def _start(context: RunContext, fingerprints: Callable[[], Mapping[str, str]]) -> RunContext:
    """Join the job, lock the run's folder, choose the checkpoint to resume, and check that it is this run's and that
    the run fits the devices. ``fingerprints`` makes those of the training data."""
    recipe = context.recipe
    decides = {**identity.of(recipe, context.tokenizer, fingerprints(), context.base), **context.identity}
    comparison.check(recipe.as_dict(), decides, recipe.trainer_value("ddp_timeout"))  # before a process group is made
    arguments = recipe.training_arguments()
    join_process_group(arguments)
    rank_sync, output = RankSync(), Path(arguments.output_dir)
    lock(output, rank_sync)
    raise_if_any(from_all_ranks(run_lock.not_shared(output, rank_sync), rank_sync))

    resumed = None
    if recipe.trains:
        resumed = load.choose(recipe.resume_from_checkpoint, output, rank_sync)
        stage = None if recipe.deepspeed is None else deepspeed_config.stage(recipe.deepspeed)
        load.require_fitting(resumed, stage, recipe.scale.tensor_parallel_size)
    # A new run in a folder with checkpoints would leave two runs' in it, and a later resume would take either. A method
    # that trains nothing would put its scores and its model in the place of those that were trained.
    earlier = [folder.name for folder in checkpoint.numbered(output)]
    problems = []
    if resumed is None and earlier and not (recipe.trains and recipe.safety.start_anew):
        wrong = f"it holds checkpoints of an earlier run: {', '.join(earlier)}"
        remedy = "--resume auto to resume it, --start_anew to remove them, or " if recipe.trains else ""
        problems = [Problem("output_dir", str(output), wrong, f"{remedy}another output_dir")]
    raise_if_any(rank_sync.first(problems))

    set_seed(arguments.seed)
    context = replace(context, arguments=arguments, rank_sync=rank_sync, resumed=resumed, identity=decides)
    if resumed is not None:
        _require_same_run(context, fingerprints)
    return require_room(context)  # a finished run has nothing to do on any device, so this comes after it


def lock(output: Path, rank_sync: RankSync) -> None:
    """Be the only job in the run's folder, and remove what a killed job left half done there."""
    others = rank_sync.rank == 0 and any(
        holder.pid != os.getpid() or not holder.is_here for holder in run_lock.living(output)
    )
    raise_if_any(rank_sync.first(run_lock.refuse(output) if others else []))
    problems: list[Problem] = []
    try:
        run_lock.RunLock(output, rank_sync.rank).acquire()
    except UserError as error:
        problems = error.problems
    raise_if_any(from_all_ranks(problems, rank_sync))
    if rank_sync.rank == 0:
        for line in checkpoint.tidy(output):
            say(line)
    rank_sync.first(None)  # no rank reads the folder before it is tidy


def from_all_ranks(own: list[Problem], rank_sync: RankSync) -> list[Problem]:
    """Return the problems of all ranks, each once: a rank that refused alone would leave the others waiting for it."""
    return list({str(problem): problem for problems in rank_sync.objects(own) for problem in problems}.values())


def _require_same_run(context: RunContext, fingerprints: Callable[[], Mapping[str, str]]) -> None:
    """Check that the chosen checkpoint is of this very run, and print the differences that are allowed."""
    recipe, rank_sync, resumed = context.recipe, context.rank_sync, context.resumed
    assert resumed is not None
    saved = resumed.manifest.identity
    found = identity.differences(saved, context.identity)
    if any(difference.name.startswith("data") for difference in found):
        # checkpoints of older versions know large files by their time of change
        with dated_identities():
            dated = identity.differences(saved, {**context.identity, **identity.of_data(fingerprints())})
        if not any(difference.name.startswith("data") for difference in dated):
            found = dated
    raise_if_any(from_all_ranks(identity.problems(resumed.folder, found, recipe.safety.resume_anyway), rank_sync))
    same = all(difference.name == identity.COMMIT for difference in found)
    ended = rank_sync.first(finished(context.output) if same else None)
    if recipe.resume_from_checkpoint == load.AUTO and ended is not None:
        raise NothingToDo(f"{context.arguments.output_dir}: finished already, at step {ended['step']}")
    if rank_sync.rank == 0:
        for line in load.describe(resumed, found):
            say(line)


def require_room(context: RunContext) -> RunContext:
    """Check that the run fits the GPUs of this machine, or is small enough for a CPU; return the context with the
    prediction of its memory."""
    recipe, config, rank_sync = context.recipe, context.config, context.rank_sync
    plan = Plan(job_of(recipe, config, rank_sync.world, hardware.gpu_at_hand()))
    problems = search.refusal(plan) if recipe.trains and not recipe.memory.force else []
    raise_if_any(from_all_ranks([*problems, *device.check(recipe, config)], rank_sync))
    return replace(context, plan=plan)
