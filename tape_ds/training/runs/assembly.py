"""From a checked recipe to a run that is ready to train: one order for every kind of run.

A kind (:mod:`.extension`, :mod:`.finetuning`, :mod:`.generated`, :mod:`.pretraining`) supplies what differs: its
model's configuration, its sequences, its model and its scoring.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transformers import set_seed

from tape_ds import checkpoint
from tape_ds.checkpoint import load
from tape_ds.config import deepspeed_config
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.finetuning import ChatRecipe, ScrollsRecipe
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.data.sources.file_identity import dated_identities
from tape_ds.distributed import comparison
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.distributed.shared_reading import identify_together
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.methods.prepare import prepare
from tape_ds.models.loading.extendable import Config
from tape_ds.planning import hardware, search
from tape_ds.planning.prediction import Plan
from tape_ds.planning.recipe_job import job_of, settle_here
from tape_ds.resilience import run_lock
from tape_ds.run_folder import FINISHED, read
from tape_ds.targets.target import Target
from tape_ds.training import earlier_run, identity
from tape_ds.training.environment import join_process_group, say
from tape_ds.training.finite_weights import require_finite_weights
from tape_ds.training.run import Run
from tape_ds.training.runs.extension import Extension
from tape_ds.training.runs.finetuning import ChatTuning, ScrollsTuning
from tape_ds.training.runs.generated import GeneratedRun
from tape_ds.training.runs.pretraining import Pretraining

KINDS: Mapping[type[Recipe], type[Run]] = {
    ExtensionRecipe: Extension,
    GeneratedRecipe: GeneratedRun,
    PretrainingRecipe: Pretraining,
    ChatRecipe: ChatTuning,
    ScrollsRecipe: ScrollsTuning,
}


class NothingToDo(Exception):  # noqa: N818 - nothing went wrong
    """Raised on all ranks where ``resume: auto`` meets a finished run."""


def assemble(target: Target[Recipe]) -> Run:
    """Build everything up to the trainer. Raises UserError on all ranks alike, and :class:`NothingToDo`."""
    recipe = settle_here(target.recipe, target.config)
    # what can be refused by small files was: 140 GB of a large base are fetched for a run that can start
    raise_if_any(earlier_run.check_folder(recipe, others_only=True))
    fetched = target.fetch()
    run = KINDS[type(recipe)](
        recipe=recipe,
        target=target,
        base=fetched.base,
        config=fetched.config,
        tokenizer=fetched.tokenizer,
        identity=fetched.identity,
    )
    run = _start(run)
    if run.resumed is not None:
        _require_same_run(run, run.resumed)
    # a finished run has nothing to do on any device, so this comes after it
    run = replace(run, plan=require_room(recipe, run.config, run.rank_sync))

    # hours where text is tokenised, so everything that can refuse a run comes before
    run = run.read_data()
    run = replace(run, exact_weights=run.measure_weights())
    # after the process group: under ZeRO-3 weights are sharded as they are made or loaded
    model = run.load_model()
    if run.base is not None and run.resumed is None:
        require_finite_weights(model, "model", run.base.name, run.rank_sync)
    prepared = prepare(run.method, model, recipe.section_of_method)
    run = replace(run, model=prepared.model, names=prepared.names)
    return replace(run, teacher=run.load_teacher())


def _start(run: Run) -> Run:
    """Join the job, lock the run's folder, and choose the checkpoint to resume."""
    recipe = run.recipe
    folder = None if run.base is None else run.base.folder
    decides = {**identity.collect(recipe, run.tokenizer, {}, folder), **run.identity}
    # before a process group is made
    comparison.check(recipe.as_dict(), decides, recipe.trainer_value("ddp_timeout"))
    arguments = recipe.training_arguments()
    join_process_group(arguments)
    rank_sync = RankSync()
    output = Path(arguments.output_dir)
    decides = {**_identity_of_data(run, rank_sync), **decides}
    lock(output, rank_sync)
    raise_if_any(from_all_ranks(run_lock.not_shared(output, rank_sync), rank_sync))

    resumed = None
    if recipe.trains:
        resumed = load.choose(recipe.trainer_value("resume_from_checkpoint"), output, rank_sync)
        stage = None
        if recipe.deepspeed is not None:
            stage = deepspeed_config.stage(recipe.deepspeed)
        load.require_fitting(resumed, stage, recipe.scale.tensor_parallel_size)
    run = replace(run, arguments=arguments, rank_sync=rank_sync, resumed=resumed, identity=decides)
    _require_own_folder(run)

    set_seed(arguments.seed)
    return run


def _identity_of_data(run: Run, rank_sync: RankSync) -> dict[str, str]:
    """Return the identity of the training data, which all ranks read together and compare."""
    found: dict[str, str] = {}
    problems: list[Problem] = []
    identify_together(run.target.fingerprints, rank_sync)
    try:
        found = identity.of_data(run.target.fingerprints())
    except UserError as error:
        problems = error.problems
    raise_if_any(from_all_ranks(problems, rank_sync))
    comparison.check_data(found, rank_sync)
    return found


def _require_own_folder(run: Run) -> None:
    """Check that a run without a checkpoint in its folder replaces nothing there: a new run in another's folder would
    also mix the two, and a later resume would take either."""
    recipe = run.recipe
    output = run.output
    rank_sync = run.rank_sync
    resumed = run.resumed
    if resumed is not None and resumed.folder.resolve().parent == output.resolve():
        return  # whether it is this run's is the manifest's question
    is_auto = recipe.trainer_value("resume_from_checkpoint") == load.AUTO
    problems: list[Problem] = []
    ended: str | None = None
    if rank_sync.rank == 0:
        found = earlier_run.look(output)
        if not is_auto and resumed is None:
            problems = earlier_run.check_new_start(found, start_anew=recipe.safety.start_anew, trains=recipe.trains)
        elif is_auto and earlier_run.is_finished(found, run.identity):
            ended = f"{output}: finished already, at step {found.step_of(FINISHED)}"
        else:
            step = 0 if resumed is None else resumed.manifest.step
            problems = earlier_run.check_same_run(
                found, run.identity, step, anyway=recipe.safety.resume_anyway, trains=recipe.trains
            )
    raise_if_any(rank_sync.first(problems))
    ended = rank_sync.first(ended)
    if ended is not None:
        raise NothingToDo(ended)


def lock(output: Path, rank_sync: RankSync) -> None:
    """Be the only job in the run's folder, and remove what a killed job left half done there."""
    raise_if_any(rank_sync.first(run_lock.refuse(output, others_only=True) if rank_sync.rank == 0 else []))
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


def _require_same_run(run: Run, resumed: load.Resumed) -> None:
    """Check that the chosen checkpoint is of this very run, and print the differences that are allowed."""
    recipe = run.recipe
    rank_sync = run.rank_sync
    saved = resumed.manifest.identity
    found = identity.differences(saved, run.identity)
    if any(difference.name.startswith("data") for difference in found):
        # checkpoints of older versions know large files by their time of change
        with dated_identities():
            dated = identity.differences(saved, {**run.identity, **identity.of_data(run.target.fingerprints())})
        if not any(difference.name.startswith("data") for difference in dated):
            found = dated
    raise_if_any(from_all_ranks(identity.problems(resumed.folder, found, recipe.safety.resume_anyway), rank_sync))
    same = all(difference.name == identity.COMMIT for difference in found)
    ended = rank_sync.first(read(run.output / FINISHED) if same else None)
    if recipe.trainer_value("resume_from_checkpoint") == load.AUTO and ended is not None:
        raise NothingToDo(f"{run.arguments.output_dir}: finished already, at step {ended['step']}")
    if rank_sync.rank == 0:
        for line in load.describe(resumed, found):
            say(line)


def require_room(recipe: Recipe, config: Config, rank_sync: RankSync) -> Plan:
    """Check that a run fits the GPUs of this machine; return the prediction of its memory."""
    plan = Plan(job_of(recipe, config, rank_sync.world, hardware.gpu_at_hand()))
    problems = search.refusal(plan) if recipe.trains and not recipe.memory.force else []
    raise_if_any(from_all_ranks(problems, rank_sync))
    return plan
