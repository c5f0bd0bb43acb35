"""From a model that was found to a run that is ready to train: one order for every kind of run.

A kind (:mod:`.extension`, :mod:`.finetuning`, :mod:`.generated`, :mod:`.pretraining`) supplies what differs: its
sequences, its model and its scoring.
"""

from collections.abc import Mapping
from dataclasses import replace

from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.finetuning import ChatRecipe, ScrollsRecipe
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import raise_if_any
from tape_ds.methods.prepare import prepare_model
from tape_ds.models.loading.extendable import Config
from tape_ds.planning import hardware, search
from tape_ds.planning.prediction import Plan
from tape_ds.planning.recipe_job import job_of, settle_here
from tape_ds.targets.target import Target
from tape_ds.training import earlier_run
from tape_ds.training.finite_weights import require_finite_weights
from tape_ds.training.job import from_all_ranks, join
from tape_ds.training.run import Run, measure_weights
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


def assemble(target: Target[Recipe]) -> Run:
    """Build everything up to the trainer. Raises UserError on all ranks alike, and :class:`.job.NothingToDo`."""
    recipe = settle_here(target.recipe, target.config)
    target = replace(target, recipe=recipe)
    # what can be refused by small files was: 140 GB of a large base are fetched for a run that can start
    raise_if_any(earlier_run.check_folder(recipe, others_only=True))
    fetched = target.fetch()
    job = join(target, fetched)
    # a finished run has nothing to do on any device, so this comes after it
    plan = require_room(recipe, fetched.config, job.rank_sync)

    # hours where text is tokenised, so everything that can refuse a run comes before
    kind = KINDS[type(recipe)]
    data = kind.read_data(job)
    exact_weights = measure_weights(recipe, data.sequences)
    # after the process group: under ZeRO-3 weights are sharded as they are made or loaded
    model = kind.load_model(job, data)
    if fetched.base is not None and job.resumed is None:
        require_finite_weights(model, "model", fetched.base.name, job.rank_sync)
    prepared = prepare_model(recipe.method_name, model, recipe.section_of_method)
    return kind(
        job=job,
        data=data,
        plan=plan,
        exact_weights=exact_weights,
        model=prepared.model,
        names=prepared.names,
        teacher=kind.load_teacher(job),
    )


def require_room(recipe: Recipe, config: Config, rank_sync: RankSync) -> Plan:
    """Check that a run fits the GPUs of this machine; return the prediction of its memory."""
    plan = Plan(job_of(recipe, config, rank_sync.world, hardware.gpu_at_hand()))
    problems = search.refusal(plan) if recipe.trains and not recipe.memory.force else []
    raise_if_any(from_all_ranks(problems, rank_sync))
    return plan
