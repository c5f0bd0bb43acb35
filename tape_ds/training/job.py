"""A job that has joined: the processes of a run, its locked folder, and the checkpoint that it resumes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from transformers import TrainingArguments, set_seed

from tape_ds import checkpoint
from tape_ds.checkpoint import load
from tape_ds.config import deepspeed_config
from tape_ds.config.recipe import Recipe
from tape_ds.data.sources.file_identity import dated_identities
from tape_ds.distributed import comparison
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.distributed.shared_reading import identify_together
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.resilience import run_lock
from tape_ds.run_folder import FINISHED, read_marker
from tape_ds.targets.base import BaseModel
from tape_ds.targets.target import FetchedModel, Target
from tape_ds.training import earlier_run, identity
from tape_ds.training.environment import join_process_group, say

R_co = TypeVar("R_co", bound=Recipe, covariant=True)


class NothingToDo(Exception):  # noqa: N818 - nothing went wrong
    """Raised on all ranks where ``resume: auto`` meets a finished run."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob(Generic[R_co]):
    """The state of a run before its data are read."""

    target: Target[R_co]
    """With a recipe that leaves nothing open."""
    fetched: FetchedModel
    arguments: TrainingArguments
    rank_sync: RankSync
    resumed: load.Resumed | None
    """The checkpoint that the run resumes."""
    identity: Mapping[str, object]
    """Everything that decides the run's numbers, see :mod:`.identity`."""

    @property
    def recipe(self) -> R_co:
        return self.target.recipe

    @property
    def base(self) -> BaseModel:
        """The pretrained model that the run starts from."""
        assert self.fetched.base is not None, "a new model has none"
        return self.fetched.base

    @property
    def output(self) -> Path:
        return Path(self.arguments.output_dir)


def join(target: Target[R_co], fetched: FetchedModel) -> TrainingJob[R_co]:
    """Join the job, lock the run's folder, and choose the checkpoint to resume. Raises UserError on all ranks alike,
    and :class:`NothingToDo`."""
    recipe = target.recipe
    decides = identity.collect(recipe, fetched)
    # before a process group is made
    comparison.check(recipe.as_dict(), decides, recipe.trainer.ddp_timeout)
    arguments = recipe.training_arguments()
    join_process_group(arguments)
    rank_sync = RankSync()
    output = Path(arguments.output_dir)
    decides = {**_identity_of_data(target, rank_sync), **decides}
    lock(output, rank_sync)
    raise_if_any(from_all_ranks(run_lock.not_shared(output, rank_sync), rank_sync))

    resumed = None
    if recipe.trains:
        resumed = load.choose(recipe.trainer.resume_from_checkpoint, output, rank_sync)
        stage = None
        if recipe.deepspeed is not None:
            stage = deepspeed_config.stage(recipe.deepspeed)
        load.require_fitting(resumed, stage, recipe.scale.tensor_parallel_size)
    job = TrainingJob(
        target=target,
        fetched=fetched,
        arguments=arguments,
        rank_sync=rank_sync,
        resumed=resumed,
        identity=decides,
    )
    _require_own_folder(job)
    if resumed is not None:
        _require_same_run(job, resumed)
    set_seed(arguments.seed)
    return job


def _identity_of_data(target: Target[Recipe], rank_sync: RankSync) -> dict[str, str]:
    """Return the identity of the training data, which all ranks read together and compare."""
    found: dict[str, str] = {}
    problems: list[Problem] = []
    identify_together(target.fingerprints, rank_sync)
    try:
        found = identity.of_data(target.fingerprints())
    except UserError as error:
        problems = error.problems
    raise_if_any(from_all_ranks(problems, rank_sync))
    comparison.check_data(found, rank_sync)
    return found


def _require_own_folder(job: TrainingJob[Recipe]) -> None:
    """Check that a run without a checkpoint in its folder replaces nothing there: a new run in another's folder would
    also mix the two, and a later resume would take either."""
    recipe = job.recipe
    output = job.output
    rank_sync = job.rank_sync
    resumed = job.resumed
    if resumed is not None and resumed.folder.resolve().parent == output.resolve():
        return  # whether it is this run's is the manifest's question
    is_auto = recipe.trainer.resume_from_checkpoint == load.AUTO
    problems: list[Problem] = []
    ended: str | None = None
    if rank_sync.rank == 0:
        found = earlier_run.look(output)
        if not is_auto and resumed is None:
            problems = earlier_run.check_new_start(
                found, start_anew=recipe.safety.start_anew, trains=recipe.trains
            )
        elif is_auto and earlier_run.is_finished(found, job.identity):
            ended = f"{output}: finished already, at step {found.step_of(FINISHED)}"
        else:
            step = 0 if resumed is None else resumed.manifest.step
            problems = earlier_run.check_same_run(
                found, job.identity, step, anyway=recipe.safety.resume_anyway, trains=recipe.trains
            )
    raise_if_any(rank_sync.first(problems))
    ended = rank_sync.first(ended)
    if ended is not None:
        raise NothingToDo(ended)


def lock(output: Path, rank_sync: RankSync) -> None:
    """Be the only job in the run's folder, and remove what a killed job left half done there."""
    raise_if_any(
        rank_sync.first(run_lock.refuse(output, others_only=True) if rank_sync.rank == 0 else [])
    )
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
    return list(
        {
            str(problem): problem for problems in rank_sync.objects(own) for problem in problems
        }.values()
    )


def _require_same_run(job: TrainingJob[Recipe], resumed: load.Resumed) -> None:
    """Check that the chosen checkpoint is of this very run, and print the differences that are allowed."""
    recipe = job.recipe
    rank_sync = job.rank_sync
    saved = resumed.manifest.identity
    found = identity.differences(saved, job.identity)
    if any(difference.name.startswith("data") for difference in found):
        # checkpoints of older versions know large files by their time of change
        with dated_identities():
            dated = identity.differences(
                saved, {**job.identity, **identity.of_data(job.target.fingerprints())}
            )
        if not any(difference.name.startswith("data") for difference in dated):
            found = dated
    raise_if_any(
        from_all_ranks(
            identity.problems(resumed.folder, found, recipe.safety.resume_anyway), rank_sync
        )
    )
    same = all(difference.name == identity.COMMIT for difference in found)
    ended = rank_sync.first(read_marker(job.output / FINISHED) if same else None)
    if recipe.trainer.resume_from_checkpoint == load.AUTO and ended is not None:
        raise NothingToDo(f"{job.arguments.output_dir}: finished already, at step {ended['step']}")
    if rank_sync.rank == 0:
        for line in load.describe(resumed, found):
            say(line)
