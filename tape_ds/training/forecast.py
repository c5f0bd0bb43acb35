"""A recipe as a question to the planner: what is trained, in which dtype, sharded how; the answer is the planner's."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tape_ds.planning import shape
from tape_ds.planning.hardware import Gpu, gpu_at_hand
from tape_ds.planning.job import Job
from tape_ds.planning.layout import Engine, PlannedLayout
from tape_ds.planning.plan import Plan
from tape_ds.planning.shape import TrainedShape
from tape_ds.recipe import deepspeed_config
from tape_ds.recipe.extension import ExtensionRecipe
from tape_ds.recipe.recipe import Recipe
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
        from tape_ds.model.attention.shifted_groups import attention_span

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
