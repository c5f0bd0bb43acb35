"""Every key that the installed DeepSpeed reads from its JSON, at every level.

DeepSpeed refuses an unknown key inside the blocks it parses with pydantic and silently ignores one anywhere else, so
``gradient_cliping`` would train without clipping. The pydantic blocks are taken from DeepSpeed's own classes; for the
others, which it reads key by key, the keys are listed here, and a test finds each of them in its source.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import pydantic

from tape_ds.errors import Problem, did_you_mean
from tape_ds.training.recipe import values

FREE = object()
"""A block whose keys depend on another key (the arguments of an optimizer, of a scheduler)."""

_NUMBER = int | float
_DTYPE = Literal["fp32", "fp16", "bf16"] | None

# Read key by key (deepspeed/runtime/config.py and the modules it imports): name -> type, block, or FREE.
SCALARS: dict[str, Any] = {
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "managed_gradient_accumulation": bool,
    "gradient_clipping": _NUMBER,
    "steps_per_print": int | None,
    "dump_state": bool,
    "disable_python_gc": bool,
    "disable_allgather": bool,
    "communication_data_type": _DTYPE,
    "seq_parallel_communication_data_type": _DTYPE,
    "sequence_parallel_size": int,
    "prescale_gradients": bool,
    "gradient_predivide_factor": _NUMBER,
    "gradient_allreduce_op": Literal["mean", "sum"],
    "zero_allow_untested_optimizer": bool,
    "zero_force_ds_cpu_optimizer": bool,
    "wall_clock_breakdown": bool,
    "memory_breakdown": bool,
    "dataloader_drop_last": bool,
    "use_data_before_expert_parallelism": bool,
    "log_level": str | None,
    "vocabulary_size": int | None,
}
BLOCKS: dict[str, Any] = {
    "optimizer": {"type": str, "params": FREE, "legacy_fusion": bool},
    "scheduler": {"type": str, "params": FREE},
    "torch_autocast": {"enabled": bool, "dtype": str | None, "lower_precision_safe_modules": list | None},
    "activation_checkpointing": {
        "partition_activations": bool,
        "number_checkpoints": int | None,
        "contiguous_memory_optimization": bool,
        "synchronize_checkpoint_boundary": bool,
        "profile": bool,
        "cpu_checkpointing": bool,
    },
    "aio": {
        "block_size": int,
        "queue_depth": int,
        "intra_op_parallelism": int,
        "single_submit": bool,
        "overlap_events": bool,
        "use_gds": bool,
    },
    "flops_profiler": {
        "enabled": bool,
        "recompute_fwd_factor": _NUMBER,
        "profile_step": int,
        "module_depth": int,
        "top_modules": int,
        "detailed": bool,
        "output_file": str | None,
    },
    "data_types": {
        "grad_accum_dtype": str | None,
        "param_dtype": str | None,
        "buffer_dtype": str | None,
        "keep_in_fp32_modules": str | list,
    },
    "checkpoint": {
        "tag_validation": str,
        "checkpoint_serialization": bool,
        "load_universal": bool,
        "use_node_local_storage": bool,
        "parallel_write": {"pipeline_stage": bool},
        "writer": {
            "type": str | None,
            "io_buffer_size": int,
            "io_buffer_double": bool,
            "io_multiplier": int,
            "show_statistics": bool,
            "data_parallel": str | None,
            "decoupled": bool,
        },
    },
}

NOT_HERE: dict[str, str] = {
    "pipeline": "it is for models built as a PipelineModule",
    "hybrid_engine": "it is for generating inside a training loop",
    "data_efficiency": "it works through DeepSpeed's own data loader, and the trainer brings its own",
    "autotuning": "it restarts the run with other batch sizes, and global_batch_size is the recipe's",
    "expert_parallel": "it is for mixtures of experts",
    "weight_quantization": "it is for inference",
    "datastates_ckpt": "it replaces the checkpoint format that resuming relies on",
}
"""Blocks that DeepSpeed knows and that have no part in this training."""

FILLED_FROM_TRAINER = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16.enabled",
    "fp16.enabled",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
    "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps",
    "scheduler.params.total_num_steps",
)
"""Keys whose "auto" transformers replaces with the trainer's value (transformers/integrations/deepspeed.py)."""

FILLED_FROM_MODEL = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
"""Keys whose "auto" transformers computes from the model's hidden size."""

_AUTO_IS_A_VALUE = (
    "data_types.keep_in_fp32_modules",
    "zero_optimization.zenflow.select_strategy",
    "zero_optimization.zenflow.select_interval",
    "zero_optimization.zenflow.update_interval",
)


class Removed(NamedTuple):
    """Keys that DeepSpeed took out, with its own words."""

    top: dict[str, str]
    zero: dict[str, str]


@functools.cache
def removed() -> Removed:
    """Removed keys at the top level and inside ``zero_optimization``, as the installed DeepSpeed lists them."""
    from deepspeed.runtime import config

    return Removed(config._REMOVED_TOP_LEVEL_CONFIG_KEYS, config._REMOVED_ZERO_CONFIG_KEYS)


@functools.cache
def models() -> dict[str, type[pydantic.BaseModel] | dict[str, Any]]:
    """Blocks that DeepSpeed parses with pydantic (the timers' lies one level down)."""
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    return {
        "zero_optimization": DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "comms_logger": CommsLoggerConfig,
        "tensorboard": TensorBoardConfig,
        "wandb": WandbConfig,
        "csv_monitor": CSVConfig,
        "comet": CometConfig,
        "compile": CompileConfig,
        "tensor_parallel": TPTrainingConfig,
        "timers": {"throughput": DeepSpeedThroughputTimerConfig},
    }


def check(config: Mapping[str, Any], root: str = "deepspeed") -> list[Problem]:
    """Unknown, removed and ill-typed keys of a DeepSpeed JSON, at every level, all at once.

    Args:
        config: the parsed JSON.
        root: what stands before each key in the messages.
    """
    problems = [
        Problem(f"{root}.{key}", config[key], f"removed from DeepSpeed: {words}", "remove it")
        for key, words in removed().top.items()
        if key in config
    ]
    zero = config.get("zero_optimization")
    if isinstance(zero, Mapping):
        problems += [
            Problem(f"{root}.zero_optimization.{key}", zero[key], f"removed from DeepSpeed: {words}", "remove it")
            for key, words in removed().zero.items()
            if key in zero
        ]
    if "bfloat16" in config:
        wrong = "an old name that transformers does not read: the trainer would not know of it"
        problems.append(Problem(f"{root}.bfloat16", config["bfloat16"], wrong, 'write "bf16"'))
    for key in NOT_HERE.keys() & config.keys():
        problems.append(
            Problem(f"{root}.{key}", config[key], f"no part of this training: {NOT_HERE[key]}", "remove it")
        )
    handled = {*removed().top, *NOT_HERE, "bfloat16"}
    schema = SCALARS | BLOCKS | models()
    problems += _check_block({key: value for key, value in config.items() if key not in handled}, schema, "", root)
    return problems


def _check_block(block: Mapping[str, Any], schema: dict[str, Any], path: str, root: str) -> Iterator[Problem]:
    for key, value in block.items():
        name = f"{path}{key}"
        if key not in schema:
            yield Problem(
                f"{root}.{name}", value, "unknown key, which DeepSpeed would ignore", did_you_mean(key, schema)
            )
        elif value == "auto":
            yield from _check_auto(name, root)
        else:
            yield from _check_entry(value, schema[key], name, root)


def _check_entry(value: Any, kind: Any, name: str, root: str) -> Iterator[Problem]:
    parsed = isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
    if parsed or isinstance(kind, dict) or kind is FREE:
        if not isinstance(value, Mapping):
            yield Problem(f"{root}.{name}", value, "not a block", 'write { "key": value, ... }')
        elif parsed:
            yield from _check_model(value, kind, name, root)
        elif kind is not FREE:
            yield from _check_block(value, kind, f"{name}.", root)
        return
    try:
        values.convert(value, kind)
    except values.MismatchError as mismatch:
        yield Problem(f"{root}.{name}", value, "wrong type", str(mismatch))


def _check_model(block: Mapping[str, Any], model: type[pydantic.BaseModel], name: str, root: str) -> Iterator[Problem]:
    """A pydantic block: unknown keys with a suggestion, then what pydantic says of the known ones."""
    inner = _inner_models(model)
    known: dict[str, Any] = {}
    old = removed().zero if name == "zero_optimization" else {}
    for key, value in block.items():
        field = f"{name}.{key}"
        if key in old:
            continue
        block_model = inner.get(key)
        if key not in inner:
            yield Problem(f"{root}.{field}", value, "unknown key", did_you_mean(key, inner))
        elif value == "auto":
            yield from _check_auto(field, root)
        elif block_model is not None and isinstance(value, Mapping):
            yield from _check_model(value, block_model, field, root)
        else:
            known[key] = value
    try:
        model(**known)
    except pydantic.ValidationError as error:
        for found in error.errors():
            place = ".".join(map(str, (name, *found["loc"])))
            shown = found["input"] if found["loc"] else dict(block)
            yield Problem(f"{root}.{place}", shown, found["msg"], "see DeepSpeed's configuration reference")
    except (TypeError, ValueError, AssertionError) as error:  # raised by some of its validators as they are
        yield Problem(f"{root}.{name}", dict(block), str(error), "see DeepSpeed's configuration reference")


def _inner_models(model: type[pydantic.BaseModel]) -> dict[str, type[pydantic.BaseModel] | None]:
    """Every name a key may have -> the model of its block, None for a plain value."""
    found: dict[str, type[pydantic.BaseModel] | None] = {}
    for name, field in model.model_fields.items():
        members = get_args(field.annotation) or (field.annotation,)
        blocks = [kind for kind in members if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)]
        for key in {name, field.alias or name}:
            found[key] = blocks[0] if blocks else None
    return found


def _check_auto(name: str, root: str) -> Iterator[Problem]:
    if name not in (*FILLED_FROM_TRAINER, *FILLED_FROM_MODEL, *_AUTO_IS_A_VALUE):
        wrong = "nothing fills this in: DeepSpeed would fall back to its default or fail"
        yield Problem(f"{root}.{name}", "auto", wrong, "write the value, or remove the key for DeepSpeed's default")
