"""A recipe as a question to the planner: what is trained, in which dtype, sharded how; the answer is the planner's.

Where a recipe leaves the ZeRO stage, recomputation or the micro-batch to the plan (``auto``), they are chosen here. The
choice follows from the recipe, the GPU, the number of processes and the checkpoint that a run resumes, so every rank
makes the same one without asking, and :mod:`tape_ds.distributed.comparison` compares it between machines. The global
batch stays and accumulation follows: no choice changes what a run learns.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import checkpoint
from tape_ds.config import deepspeed_config, trainer
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.errors import raise_if_any
from tape_ds.models.loading.families import TAPE
from tape_ds.planning import search, shape
from tape_ds.planning.hardware import Gpu, gpu_at_hand
from tape_ds.planning.job import Job
from tape_ds.planning.layout import Engine, PlannedLayout
from tape_ds.planning.plan import GIB, Plan
from tape_ds.planning.shape import TrainedShape
from tape_ds.training import model_config

if TYPE_CHECKING:
    from tape_ds.planning.shape import Config


def here(recipe: Recipe, config: Config, world: int) -> Plan:
    """Return what a run needs on the GPU at hand, or on a CPU.

    Args:
        recipe: checked.
        config: of the model that is trained, see :mod:`.model_config`.
        world: processes.
    """
    return Plan(job(recipe, config, world, gpu_at_hand()))


def memory_line(recipe: Recipe) -> str:
    """Return the memory of a run that is only looked at, in one line.

    Raises:
        UserError: as :func:`.model_config.beforehand`.
    """
    config = model_config.at_hand(recipe)
    if config is None:
        return "not known before the model's configuration or the tokenizer is at hand"
    plan = here(recipe, config, recipe.world_size)
    gpu, asked = plan.job.gpu, f"tape-ds plan {shlex.join(recipe.words)} --gpus {recipe.world_size}"
    if gpu is None:
        return f"{plan.summary()}; of a GPU: {asked} --gpu h100-80"
    return plan.summary() + (
        "" if plan.fits else f"; IT DOES NOT FIT: {asked} --gpu {gpu.name} --search says what does"
    )


def job(recipe: Recipe, config: Config, world: int, gpu: Gpu | None) -> Job:
    """Return the question that a recipe asks.

    Args:
        recipe: checked.
        config: of the model that is trained, see :mod:`.model_config`.
        world: processes.
        gpu: what each runs on; None: a CPU.
    """
    import torch

    sixteen = bool(recipe.trainer_value("bf16") or recipe.trainer_value("fp16"))
    state, liger = getattr(recipe.model, "state_dtype", None), recipe.model.liger
    # a plan for GPUs is often made elsewhere: a machine without one says nothing of whether theirs will have Liger
    there = not torch.cuda.is_available() or importlib.util.find_spec("liger_kernel") is not None
    own = recipe if isinstance(recipe, ExtensionRecipe) else None
    # Sequences that say where documents or padding begin have the attention of packed sequences. How many documents a
    # sequence has is known once the data are read: one is the most work.
    data = None if own is None else own.data
    has_borders = data is None or (data.pose.chunks == 1 and not data.attend_across and data.packing != "single")
    span = None
    if own is not None and own.method.chosen.grouped:
        from tape_ds.attention.shifted_groups import attention_span

        span = attention_span(own.window, own.method.group_tokens, config.num_attention_heads)
    return Job(
        model=shape.sizes(config),
        trained=trained_of(recipe),
        length=recipe.window,
        global_batch=recipe.global_batch_size,
        layout=_layout(recipe, config, world),
        gpu=gpu,
        steps=max(0, int(recipe.trainer_value("max_steps"))),
        element=2 if sixteen else 4,
        state_element={None: None, "float32": 4}.get(state, 2),
        fused=gpu is not None and (liger == "on" or (liger == "auto" and there)),
        # without an engine a 16-bit run is under autocast, where the model's norm takes torch's operators
        fused_norms=gpu is not None and config.model_type == TAPE and (recipe.deepspeed is not None or not sixteen),
        wide_attention=recipe.model.attention_backend == "triton",
        attention_span=span,
        documents=1 if has_borders else None,
        quantised=own is not None and own.method.load_in_4bit,
        distilled=own is not None and own.method.distill,
    )


def trained_of(recipe: Recipe) -> TrainedShape:
    """Return which parameters a recipe's method trains."""
    if not isinstance(recipe, ExtensionRecipe) or recipe.method.chosen.trains == "everything":
        return TrainedShape.everything()
    if not recipe.trains:
        return TrainedShape()
    method, has_adapters = recipe.method, recipe.method.chosen.trains == "adapters"
    return TrainedShape(
        norms=method.train_norms,
        embeddings=method.train_embeddings,
        positions=method.train_position,
        adapters=tuple((name, method.lora_r) for name in method.lora_targets) if has_adapters else (),
    )


def _layout(recipe: Recipe, config: Config, world: int) -> PlannedLayout:
    settings = recipe.deepspeed

    def of_zero(name: str) -> Any:
        return deepspeed_config.lookup(settings or {}, f"zero_optimization.{name}")

    return PlannedLayout(
        gpus=world,
        zero=None if settings is None else deepspeed_config.stage(settings),
        tensor=recipe.scale.tensor_parallel_size,
        sequence=recipe.scale.sequence_parallel_size,
        micro_batch=int(recipe.trainer_value("per_device_train_batch_size")),
        checkpoint_layers=recipe.memory.checkpoint_layers if recipe.trainer_value("activation_checkpointing") else None,
        offload_checkpoints=recipe.memory.checkpoint_offload,
        offload_optimizer=of_zero("offload_optimizer.device") or "none",
        offload_weights=of_zero("offload_param.device") or "none",
        mlp_tiles=recipe.memory.mlp_tiles,
        engine=_engine(of_zero, config.hidden_size),
    )


def _engine(of_zero: Callable[[str], Any], hidden: int) -> Engine:
    """Return the JSON's sizes: what is "auto" is filled in by transformers, what is left out by DeepSpeed."""
    filled_in = Engine.zero_3(hidden)
    left_out = Engine(reduce_bucket=500_000_000)
    names = {
        "reduce_bucket": "reduce_bucket_size",
        "prefetch_bucket": "stage3_prefetch_bucket_size",
        "max_live": "stage3_max_live_parameters",
        "persistence": "stage3_param_persistence_threshold",
        "sub_group": "sub_group_size",
        "secondary": "zero_hpz_partition_size",
    }
    found = {}
    for field, name in names.items():
        value = of_zero(name)
        source = left_out if value is None else filled_in
        found[field] = getattr(source, field) if value in (None, "auto") else int(value)
    overlap = of_zero("overlap_comm")
    return Engine(**found, overlap=of_zero("stage") == 3 if overlap is None else bool(overlap))


def settle_here(recipe: Recipe, config_of: Callable[[Recipe], Config | None]) -> Recipe:
    """Return the recipe as the GPU at hand takes it.

    Args:
        recipe: checked.
        config_of: finds the configuration of the model that is trained; asked only where there is a choice to make.

    Raises:
        UserError: as :func:`settle` and ``config_of``.
    """
    if not recipe.open:
        return recipe
    gpu = gpu_at_hand() if recipe.trains and recipe.chosen_cpu is None else None
    return settle(recipe, None if gpu is None else config_of(recipe), gpu)


def settle(recipe: Recipe, config: Config | None, gpu: Gpu | None) -> Recipe:
    """Return the recipe with a value for each field that it leaves open: those of the fastest layout that leaves memory
    to spare; where a run resumes, those that its checkpoint was trained with.

    Args:
        recipe: checked.
        config: of the model that is trained; None: not known.
        gpu: what each process runs on; None: a CPU, or a GPU that the planner does not know.

    Raises:
        UserError: the values of the checkpoint do not suit this job.
    """
    if not recipe.open:
        return recipe
    cautious = _with(recipe, trainer.CAUTIOUS)
    if not recipe.trains:
        return cautious
    if (resumed := _resumed(recipe)) is not None:
        folder, values = resumed
        kept = _with(recipe, values)
        raise_if_any(list(kept.problems(set())))
        return _explained(kept, recipe, f"as {folder.name} was trained")
    if gpu is None or config is None:
        lacking = "no GPU that the planner knows" if gpu is None else "no configuration of the model yet"
        return _explained(cautious, recipe, f"the least memory: there is {lacking} to plan for")
    before = Plan(job(cautious, config, recipe.world_size, gpu))
    if before.job.model.counted:
        return _explained(cautious, recipe, "the least memory: this model's activations are not known")
    free = recipe.open | ({"checkpoint_layers"} - recipe.given)
    for plan in search.fastest(before.job, free):
        chosen = _with(recipe, _values(plan.job.layout))
        if not list(chosen.problems(set())):
            gain, spare = before.step.all / plan.step.all, (gpu.memory - plan.memory.peak.total) / GIB
            least = {name: value for name, value in trainer.CAUTIOUS.items() if name in recipe.open}
            speed = f"predicted {gain:.2f}x as fast as {_flags(least)}"
            return _explained(chosen, recipe, f"the fastest on {gpu.name} with {spare:.1f} GiB to spare; {speed}")
    return _explained(cautious, recipe, f"the least memory: no layout leaves {search.SPARE:.1%} of {gpu.name} free")


def _resumed(recipe: Recipe) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint that a run will go on from, as far as its manifest tells, and its values of the fields; a
    damaged one that :mod:`tape_ds.checkpoint.resume` passes over is of the same run."""
    given = recipe.resume_from_checkpoint
    if not given:
        return None
    from tape_ds.checkpoint import resume  # torch, which tape-ds plan imports only once its options are read

    output = Path(recipe.trainer_value("output_dir")).expanduser()
    newest = given in (True, resume.AUTO)
    for folder in reversed(checkpoint.numbered(output)) if newest else [Path(str(given)).expanduser()]:
        with contextlib.suppress(OSError, ValueError):  # the resume itself reports it
            manifest = checkpoint.read(folder)
            stored = {name: manifest.identity.get(f"recipe.{name}", value) for name, value in _UNWRITTEN.items()}
            return folder, {"deepspeed": f"zero{manifest.stage}" if manifest.stage else None, **stored}
    return None


_UNWRITTEN = {"activation_checkpointing": False, "checkpoint_layers": 1, "per_device_train_batch_size": 1}
"""Values of a checkpoint that does not mention them."""


def _values(layout: PlannedLayout) -> dict[str, Any]:
    return {
        "deepspeed": f"zero{layout.zero}",
        "activation_checkpointing": layout.every is not None,
        "checkpoint_layers": layout.checkpoint_layers or 1,
        "per_device_train_batch_size": layout.micro_batch,
    }


def _with(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with ``values`` for what it leaves open; ``checkpoint_layers`` goes with its switch."""
    own = {name: values[name] for name in recipe.open}
    engine, memory = recipe.deepspeed, recipe.memory
    if "deepspeed" in own:
        engine = deepspeed_config.read(own["deepspeed"], []) if own["deepspeed"] else None
    if "activation_checkpointing" in own:
        layers = memory.checkpoint_layers if "checkpoint_layers" in recipe.given else values.get("checkpoint_layers", 1)
        memory = memory.model_copy(update={"checkpoint_layers": layers if own["activation_checkpointing"] else 1})
    return replace(recipe, trainer=recipe.trainer.model_copy(update=own), deepspeed=engine, memory=memory)


def _explained(settled: Recipe, recipe: Recipe, reason: str) -> Recipe:
    """Return the recipe with the sentence that a person reads: flags that make the same run, and why."""
    own = {name: getattr(settled.trainer, name) for name in trainer.CAUTIOUS if name in recipe.open}
    if own.get("activation_checkpointing") and settled.memory.checkpoint_layers != 1:
        own["checkpoint_layers"] = settled.memory.checkpoint_layers
    return replace(settled, layout_choice=f"{_flags(own)} ({reason})")


def _flags(values: Mapping[str, Any]) -> str:
    shown = {name: "null" if value is None else str(value).lower() for name, value in values.items()}
    return " ".join(f"--{name} {value}" for name, value in shown.items())
