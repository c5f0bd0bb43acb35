"""From a recipe to the job that the planner answers, and the values that the planner chooses for a recipe.

Where a recipe has ``auto`` for the ZeRO stage, recomputation or the micro-batch, :func:`settle` chooses. The choice
follows from the recipe, the GPU, the number of processes and the checkpoint that a run resumes, so every rank makes the
same one without communication, and :mod:`tape_ds.distributed.comparison` compares it between machines. The global batch
stays and accumulation follows from it: no choice changes what a run learns.
"""

import contextlib
import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tape_ds import checkpoint
from tape_ds.attention import backends
from tape_ds.attention.shifted_groups import attention_span
from tape_ds.config import deepspeed_config, trainer
from tape_ds.config.method import LLAMAS_MAPS, targets
from tape_ds.config.recipe import Recipe
from tape_ds.distributed.layout import Engine
from tape_ds.errors import raise_if_any
from tape_ds.models.files.config_file import TAPE
from tape_ds.models.flops import decoder_shape
from tape_ds.planning import hardware, search, shape
from tape_ds.planning.hardware import Gpu
from tape_ds.planning.job import Job
from tape_ds.planning.prediction import GIB, Plan
from tape_ds.planning.shape import Config, TrainedShape


def job_of(recipe: Recipe, config: Config, world: int, gpu: Gpu | None) -> Job:
    """Return the question that a checked recipe asks the planner; ``gpu`` None: a CPU."""
    method = recipe.section_of_method
    sixteen = bool(recipe.trainer.bf16 or recipe.trainer.fp16)

    trained = TrainedShape.everything()
    if method is not None and method.chosen.trains == "nothing":
        trained = TrainedShape()
    elif method is not None and method.chosen.trains != "everything":
        maps = LLAMAS_MAPS if config.model_type == TAPE else decoder_shape(config).linear_maps
        adapted = targets(method, "lora_targets" in recipe.given, maps)
        trained = TrainedShape(
            norms=method.train_norms,
            embeddings=method.train_embeddings,
            positions=method.train_position,
            adapters=tuple((name, method.lora_r) for name in adapted),
        )

    # transformers fills in values that the JSON leaves at "auto", and DeepSpeed those that it does not mention
    zero = deepspeed_config.lookup(recipe.deepspeed or {}, "zero_optimization") or {}
    filled_in = Engine.zero_3(config.hidden_size)
    left_out = Engine(reduce_bucket=500_000_000)
    sizes = {}
    for field, name in {
        "reduce_bucket": "reduce_bucket_size",
        "prefetch_bucket": "stage3_prefetch_bucket_size",
        "max_live": "stage3_max_live_parameters",
        "persistence": "stage3_param_persistence_threshold",
        "sub_group": "sub_group_size",
        "secondary": "zero_hpz_partition_size",
    }.items():
        value = zero.get(name)
        default = getattr(left_out if value is None else filled_in, field)
        sizes[field] = default if value in (None, "auto") else int(value)
    overlap = zero.get("overlap_comm")
    engine = Engine(**sizes, overlap=zero.get("stage") == 3 if overlap is None else bool(overlap))

    # Sequences that mark where documents or padding begin have the attention of packed sequences. How many documents a
    # sequence has is known once the data are read: one is the most work.
    has_borders = recipe.reading is None or recipe.reading.has_borders
    span = None
    if method is not None and method.chosen.grouped:
        span = attention_span(recipe.window, method.group_tokens, config.num_attention_heads)
    backend = recipe.model.attention_backend
    sizes_of_model = shape.sizes(config)
    if backend == "auto" and gpu is not None:  # as it will choose there
        width = sizes_of_model.head_size
        columns = width * (2 if sizes_of_model.carried else 1)
        dtype = "float32"
        if recipe.trainer.bf16:
            dtype = "bfloat16"
        elif sixteen:
            dtype = "float16"
        row = backends.measured(gpu.rates.chip, dtype, width, columns, has_borders, recipe.window)
        backend = backend if row is None else row.backend
    # a plan for GPUs is often made on another machine: one without a GPU cannot tell whether theirs will have Liger
    there = not torch.cuda.is_available() or importlib.util.find_spec("liger_kernel") is not None
    liger = recipe.model.liger
    weighting = recipe.weighting
    return Job(
        model=sizes_of_model,
        trained=trained,
        length=recipe.window,
        global_batch=recipe.global_batch_size,
        layout=replace(recipe.layout(world), engine=engine),
        gpu=gpu,
        steps=max(0, int(recipe.trainer.max_steps)),
        element=2 if sixteen else 4,
        state_element={None: None, "float32": 4}.get(getattr(recipe.model, "state_dtype", None), 2),
        fused=gpu is not None and (liger == "on" or (liger == "auto" and there)),
        # without an engine a 16-bit run is under autocast, where the model's norm takes torch's operators
        fused_norms=gpu is not None
        and config.model_type == TAPE
        and (recipe.deepspeed is not None or not sixteen),
        wide_attention=backend == "triton",
        attention_span=span,
        documents=1 if has_borders else None,
        quantised=method is not None and method.load_in_4bit,
        distilled=method is not None and method.distill,
        short=(weighting.longce_short, weighting.longce_stride)
        if weighting.target_weights == "longce"
        else None,
    )


def memory_line(recipe: Recipe, config: Config | None) -> str:
    """Return the predicted memory of a run that is only looked at, in one line; ``config`` is None where the model is
    not known yet."""
    if config is None:
        return "not known before the model's configuration or the tokenizer is at hand"
    plan = Plan(job_of(recipe, config, recipe.world_size, hardware.gpu_at_hand()))
    gpu = plan.job.gpu
    command = f"tape-ds plan {shlex.join(recipe.words)} --gpus {recipe.world_size}"
    if gpu is None:
        return f"{plan.summary()}; of a GPU: {command} --gpu h100-80"
    if plan.fits:
        return plan.summary()
    return f"{plan.summary()}; IT DOES NOT FIT: {command} --gpu {gpu.name} --search shows what does"


def settle_here(recipe: Recipe, config: Config | None) -> Recipe:
    """Return :func:`settle` for the GPU of this process."""
    use_gpu = recipe.open and recipe.trains and recipe.chosen_cpu is None
    return settle(recipe, config, hardware.gpu_at_hand() if use_gpu else None)


def settle(recipe: Recipe, config: Config | None, gpu: Gpu | None) -> Recipe:
    """Return the recipe with a value for each field that it leaves open: those of the fastest layout that leaves memory
    to spare; where a run resumes, those that its checkpoint was trained with. ``config`` is None where the model is not
    known, ``gpu`` on a CPU, or for a GPU that the planner does not know."""
    if not recipe.open:
        return recipe
    settled = _with(recipe, trainer.CAUTIOUS)
    if not recipe.trains:
        return settled
    if (resumed := _resumed(recipe)) is not None:
        folder, values = resumed
        settled = _with(recipe, values)
        raise_if_any(list(settled.problems(set())))
        reason = f"as {folder.name} was trained"
    elif gpu is None:
        reason = "the least memory: there is no GPU that the planner knows to plan for"
    elif config is None:
        reason = "the least memory: there is no configuration of the model yet to plan for"
    else:
        settled, reason = _fastest(recipe, settled, config, gpu)
    return replace(settled, layout_choice=f"{_flags(settled, recipe.open)} ({reason})")


def _fastest(recipe: Recipe, cautious: Recipe, config: Config, gpu: Gpu) -> tuple[Recipe, str]:
    """Return the recipe with the fastest layout that leaves memory to spare, ``cautious`` if there is none, and why."""
    before = Plan(job_of(cautious, config, recipe.world_size, gpu))
    if before.job.model.counted:
        return cautious, "the least memory: this model's activations are not known"
    free = recipe.open | ({"checkpoint_layers"} - recipe.given)
    for plan in search.fastest(before.job, free):
        layout = plan.job.layout
        values = {
            "deepspeed": f"zero{layout.zero}",
            "activation_checkpointing": layout.recomputes,
            "checkpoint_layers": layout.checkpoint_layers or 1,
            "per_device_train_batch_size": layout.micro_batch,
        }
        chosen = _with(recipe, values)
        if not list(chosen.problems(set())):
            gain = before.step.all / plan.step.all
            spare = (gpu.memory - plan.memory.peak.total) / GIB
            speed = f"predicted {gain:.2f}x as fast as {_flags(cautious, recipe.open)}"
            return chosen, f"the fastest on {gpu.name} with {spare:.1f} GiB to spare; {speed}"
    return cautious, f"the least memory: no layout leaves {search.SPARE:.1%} of {gpu.name} free"


def _resumed(recipe: Recipe) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint that a run will resume, by its manifest alone, and its values of the fields; a damaged one
    that :mod:`tape_ds.checkpoint.load` passes over is of the same run."""
    requested = recipe.trainer.resume_from_checkpoint
    if not requested:
        return None
    folders = [Path(str(requested)).expanduser()]
    if requested in (True, "auto"):
        folders = checkpoint.numbered(recipe.trainer.folder)[::-1]
    # values of a checkpoint that does not mention them
    unwritten = {
        "activation_checkpointing": False,
        "checkpoint_layers": 1,
        "per_device_train_batch_size": 1,
    }
    for folder in folders:
        # the resume itself reports it
        with contextlib.suppress(OSError, ValueError):
            manifest = checkpoint.read(folder)
            stored = {
                name: manifest.identity.get(f"recipe.{name}", value)
                for name, value in unwritten.items()
            }
            # older versions could recompute every n-th block
            if stored["checkpoint_layers"] != "selective":
                stored["checkpoint_layers"] = 1
            return folder, {
                "deepspeed": f"zero{manifest.stage}" if manifest.stage else None,
                **stored,
            }
    return None


def _with(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with ``values`` for what it leaves open; ``checkpoint_layers`` goes with its switch."""
    own = {name: values[name] for name in recipe.open}
    engine = recipe.deepspeed
    memory = recipe.memory
    if "deepspeed" in own:
        engine = None
        if own["deepspeed"]:
            engine = deepspeed_config.read(own["deepspeed"], [])
    if "activation_checkpointing" in own:
        layers = (
            memory.checkpoint_layers
            if "checkpoint_layers" in recipe.given
            else values.get("checkpoint_layers", 1)
        )
        memory = memory.model_copy(
            update={"checkpoint_layers": layers if own["activation_checkpointing"] else 1}
        )
    return replace(
        recipe, trainer=recipe.trainer.model_copy(update=own), deepspeed=engine, memory=memory
    )


def _flags(settled: Recipe, names: frozenset[str]) -> str:
    """Return the flags for the fields ``names``, which a recipe left open, that make the run that was settled on."""
    layout = settled.layout()
    flags = layout.flags()
    shown = [name for name in trainer.CAUTIOUS if name in names]
    if "activation_checkpointing" in shown and layout.checkpoint_layers == "selective":
        shown.append("checkpoint_layers")
    return " ".join(f"--{name} {flags[name]}" for name in shown)
