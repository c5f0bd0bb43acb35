"""A recipe as a question to the planner, and its answer before anything is loaded: memory, and whether it fits.

What a method trains, in which dtype the engine holds it, and how the DeepSpeed JSON shards it is said by the recipe;
the sizes come from the model's configuration alone.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds.errors import Problem
from tape_ds.model import positions
from tape_ds.model.positions import scaling
from tape_ds.planning import memory, room, search, shape
from tape_ds.planning.hardware import Gpu, of_device
from tape_ds.planning.job import Job
from tape_ds.planning.layout import Engine, Layout, Offload
from tape_ds.planning.shape import Trained
from tape_ds.training.recipe import deepspeed_config, pretrained
from tape_ds.training.recipe.arithmetic import ArithmeticRecipe
from tape_ds.training.recipe.extension import ExtensionRecipe
from tape_ds.training.recipe.pretraining import NO_TOKENIZER, PretrainingRecipe
from tape_ds.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from tape_ds.planning.shape import Config

GIB = 2**30


def config_of(recipe: Recipe, base: str | None = None) -> Config:
    """The configuration of the model that a recipe trains, without loading it.

    Args:
        recipe: checked.
        base: address of the model to start from, or its ``config.json``, in place of the recipe's.

    Raises:
        UserError: a base model that is neither at hand nor among the published ones that the planner knows.
    """
    if isinstance(recipe, ArithmeticRecipe) and base is None:
        return recipe.checked_config()
    if isinstance(recipe, PretrainingRecipe) and base is None:
        entries = recipe.model.vocab_size or _entries(str(recipe.data.tokenizer))
        return recipe.model_config(NO_TOKENIZER, entries)
    from tape_ds.model import extendable

    native = native_config(recipe.model.model if base is None else base)
    if isinstance(recipe, ExtensionRecipe):
        return extended(recipe, native)
    return extendable.configure(native)


def config_at_hand(recipe: Recipe) -> Config | None:
    """The same where neither a network, nor a tokenizer, nor unpacking is needed for it: of a published model, of a
    folder, of a new model whose vocabulary the recipe says. Else None. A dry run asks the hub for a configuration.

    Raises:
        UserError: as :func:`config_of`.
    """
    if isinstance(recipe, ArithmeticRecipe):
        return config_of(recipe)
    if not isinstance(recipe, PretrainingRecipe):
        name = recipe.model.model
        if (file := pretrained.config_file(name, online=recipe.dry_run)) is not None:
            return config_of(recipe, str(file))
        return config_of(recipe) if shape.known(name) else None
    entries = recipe.model.vocab_size or _published_entries(str(recipe.data.tokenizer))
    return recipe.model_config(NO_TOKENIZER, entries) if entries else None


def _published_entries(tokenizer: str) -> int:
    """Of the model that a tokenizer is taken from; 0: not known."""
    return int(shape.published(tokenizer).vocab_size) if shape.known(tokenizer) else 0


def _entries(tokenizer: str) -> int:
    from tape_ds.data import tokenizer as tokenizers

    return len(tokenizers.load(tokenizer))


def native_config(model: str) -> Any:
    """The configuration of a base model: its own where it is at hand or can be fetched, else as published. Weights are
    touched in a GGUF file alone, which holds both.

    Raises:
        UserError: there is none.
    """
    if shape.known(model) and not Path(model).exists():
        return shape.published(model)
    from tape_ds.model import addresses, extendable

    path = Path(model)
    if path.is_file() and path.name == pretrained.CONFIG:
        return extendable.read_config(path.parent)
    return extendable.read_config(addresses.resolve(model) if model.endswith(".gguf") else model)


def extended(recipe: ExtensionRecipe, native: Any) -> Config:
    """The configuration of what a recipe makes of a base model.

    Raises:
        UserError: options or angles that the model cannot have.
    """
    from tape_ds.model import extendable

    model = recipe.model
    options = positions.options_for(model.position_encoding, model.position_options, NO_TOKENIZER)
    return extendable.configure(
        native,
        position_encoding=model.position_encoding,
        position_options=options or None,
        state_dtype=model.state_dtype,
        attention_backend=model.attention_backend,
        max_position_embeddings=model.target_length,
        rope_parameters=scaling.extended(
            native.rope_parameters, recipe.angles, native.max_position_embeddings, model.target_length
        ),
    )


def trained_of(recipe: Recipe) -> Trained:
    """Which parameters a recipe's method trains."""
    if not isinstance(recipe, ExtensionRecipe):
        return Trained.everything()
    method, kind = recipe.method, recipe.chosen.trains
    if kind == "everything":
        return Trained.everything()
    if kind == "nothing":
        return Trained()
    return Trained(
        norms=method.train_norms,
        embeddings=method.train_embeddings,
        positions=method.train_position,
        adapters=tuple((name, method.lora_r) for name in method.lora_targets) if kind == "adapters" else (),
    )


def job(recipe: Recipe, config: Config, world: int, gpu: Gpu | None) -> Job:
    """The question that a recipe asks.

    Args:
        recipe: checked.
        config: of the model that is trained, see :func:`config_of`.
        world: processes.
        gpu: what each runs on; None: a CPU.
    """
    sixteen = bool(recipe.trainer_value("bf16") or recipe.trainer_value("fp16"))
    backend, liger = recipe.model.attention_backend, recipe.model.liger
    fused = gpu is not None and (liger == "on" or (liger == "auto" and _liger_will_be_there()))
    state = getattr(recipe.model, "state_dtype", None)
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
        fused=fused,
        wide_attention=backend == "triton",
        attention_span=_span(recipe, config),
        documents=1 if _has_borders(recipe) else None,
        quantised=isinstance(recipe, ExtensionRecipe) and recipe.method.load_in_4bit,
    )


def _liger_will_be_there() -> bool:
    """A plan for GPUs is often made elsewhere: a machine without one says nothing about theirs."""
    import torch

    return not torch.cuda.is_available() or importlib.util.find_spec("liger_kernel") is not None


def _has_borders(recipe: Recipe) -> bool:
    """Whether rows say where documents or padding begin, so that attention is that of packed rows. How many documents a
    row has is the data's secret: one is the most work."""
    if not isinstance(recipe, ExtensionRecipe):
        return True
    return recipe.data.pose.chunks == 1 and not recipe.data.attend_across and recipe.data.packing != "single"


def _span(recipe: Recipe, config: Config) -> float | None:
    if not isinstance(recipe, ExtensionRecipe) or not recipe.chosen.grouped:
        return None
    from tape_ds.model.attention.shifted_groups import attention_span

    return attention_span(recipe.window, recipe.method.group_tokens, config.num_attention_heads)


def _layout(recipe: Recipe, config: Config, world: int) -> Layout:
    levers = recipe.memory
    again = recipe.trainer_value("activation_checkpointing")
    engine = recipe.deepspeed
    zero = None if engine is None else deepspeed_config.stage(engine)

    def offloaded(name: str) -> Offload:
        found = deepspeed_config.lookup(engine or {}, f"zero_optimization.{name}.device")
        return found if found in ("cpu", "nvme") else "none"

    return Layout(
        gpus=world,
        zero=zero,
        tensor=recipe.scale.tensor_parallel_size,
        sequence=recipe.scale.sequence_parallel_size,
        micro_batch=int(recipe.trainer_value("per_device_train_batch_size")),
        checkpoint_layers=levers.checkpoint_layers if again else None,
        offload_checkpoints=levers.checkpoint_offload,
        offload_optimizer=offloaded("offload_optimizer"),
        offload_weights=offloaded("offload_param"),
        mlp_tiles=levers.mlp_tiles,
        engine=_engine(engine or {}, config.hidden_size, zero),
    )


def _engine(settings: dict[str, Any], hidden: int, zero: int | None) -> Engine:
    """The JSON's sizes: what is "auto" is filled in by transformers, what is left out by DeepSpeed."""

    def size(name: str, left_out: int, auto: float) -> int:
        found = deepspeed_config.lookup(settings, f"zero_optimization.{name}")
        return left_out if found is None else int(auto) if found == "auto" else int(found)

    def is_on(name: str) -> bool:
        return deepspeed_config.lookup(settings, f"zero_optimization.{name}") is True

    overlap = deepspeed_config.lookup(settings, "zero_optimization.overlap_comm")
    return Engine(
        reduce_bucket=size("reduce_bucket_size", 500_000_000, hidden * hidden),
        overlap=zero == 3 if overlap is None else bool(overlap),
        prefetch_bucket=size("stage3_prefetch_bucket_size", 50_000_000, 0.9 * hidden * hidden),
        max_live=size("stage3_max_live_parameters", 1_000_000_000, 1e9),
        persistence=size("stage3_param_persistence_threshold", 100_000, 10 * hidden),
        sub_group=size("sub_group_size", 1_000_000_000, 1e9),
        secondary=size("zero_hpz_partition_size", 1, 1),
        quantised_weights=is_on("zero_quantized_weights"),
        quantised_gradients=is_on("zero_quantized_gradients"),
    )


def gpu_at_hand() -> Gpu | None:
    """The GPU of this process with the memory it really has, and its share of the host's; None on a CPU, or for one
    that the planner does not know."""
    import psutil
    import torch

    if not torch.cuda.is_available():
        return None
    found = of_device(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)
    host = psutil.virtual_memory().total / torch.cuda.device_count()
    return None if found is None else replace(found, host_memory=host, per_node=torch.cuda.device_count())


def check(recipe: Recipe, config: Config, world: int, gpu: Gpu | None) -> list[Problem]:
    """What keeps a recipe from fitting the GPUs at hand, with the remedy; empty where it fits, on a CPU, and with the
    recipe's ``force``."""
    return room.check(job(recipe, config, world, gpu), force=recipe.memory.force)


def outlook(recipe: Recipe) -> str:
    """The memory of a run that is only looked at, on the GPU at hand if there is one, in one line.

    Raises:
        UserError: as :func:`config_of`.
    """
    gpu, config = gpu_at_hand(), config_at_hand(recipe)
    if config is None:
        return "not known before the model's configuration or the tokenizer is at hand"
    asked = job(recipe, config, recipe.world_size, gpu)
    if gpu is None:
        return f"{told(asked)}; of a GPU: tools/plan.py {recipe.name} --gpus N --gpu NAME"
    return told(asked) + ("" if search.fits(asked) else "; IT DOES NOT FIT, tools/plan.py --search says what does")


def told(asked: Job) -> str:
    """The memory of a job in one line, for a person who is about to start it."""
    found = memory.estimate(asked, reserve=asked.gpu is not None)
    shown = sorted(found.peak.parts().items(), key=lambda each: -each[1])
    parts = ", ".join(
        f"{name.replace('_', ' ')} {size / GIB:.2f}" for name, size in shown if size >= 0.01 * found.peak.total
    )
    where = "a process" if asked.gpu is None else f"a GPU of {asked.gpu.memory / GIB:.1f} ({asked.gpu.name})"
    host = f"; {found.host / GIB:.1f} of the host's for each" if found.host else ""
    return (
        f"about {found.peak.total / GIB:.2f} GiB {where}, in the {found.peak.moment}"
        f"{': ' + parts if parts else ''}{host} (predicted)"
    )
