"""Every key that the installed DeepSpeed reads from its JSON, at every level.

DeepSpeed refuses an unknown key inside the blocks it parses with pydantic and silently ignores one anywhere else, so
``gradient_cliping`` would train without clipping. The pydantic blocks are those of :mod:`.library_fields`; for the
others, which it reads key by key, the keys are listed here, and a test finds each of them in its source.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tape_ds import fields
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import Section
from tape_ds.training.recipe import library_fields

FREE = object()
"""A block whose keys depend on another key (the arguments of an optimizer, of a scheduler)."""

_NUMBER = float
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


def check(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Unknown, removed and ill-typed keys of a DeepSpeed JSON, at every level, all at once."""
    if "bfloat16" in config:
        wrong = "an old name that transformers does not read: the trainer would not know of it"
        yield Problem("deepspeed.bfloat16", config["bfloat16"], wrong, 'write "bf16"')
    for key in NOT_HERE.keys() & config.keys():
        yield Problem(f"deepspeed.{key}", config[key], f"no part of this training: {NOT_HERE[key]}", "remove it")
    rest = {key: value for key, value in config.items() if key not in (*NOT_HERE, "bfloat16")}
    yield from _check_block(rest, known(), "")


def known() -> dict[str, Any]:
    """Key -> its type, the block below it, or :data:`FREE`."""
    return SCALARS | BLOCKS | library_fields.read()["deepspeed"]["blocks"]


def _check_block(block: Mapping[str, Any], keys: Mapping[str, Any], path: str) -> Iterator[Problem]:
    values: dict[str, Any] = {}
    gone = library_fields.read()["deepspeed"]["removed"].get(path.rstrip("."), {})
    for key, value in block.items():
        name, kind = f"{path}{key}", keys.get(key)
        if key in gone:
            wrong = f"removed from DeepSpeed: {gone[key]}"
            yield Problem(f"deepspeed.{name}", value, wrong, "remove it")
        elif key not in keys:
            wrong = "unknown key, which DeepSpeed would ignore" if not path else "unknown key"
            yield Problem(f"deepspeed.{name}", value, wrong, did_you_mean(key, keys))
        elif value == "auto":
            if name not in (*FILLED_FROM_TRAINER, *FILLED_FROM_MODEL, *_AUTO_IS_A_VALUE):
                wrong = "nothing fills this in: DeepSpeed would fall back to its default or fail"
                remedy = "write the value, or remove the key for DeepSpeed's default"
                yield Problem(f"deepspeed.{name}", "auto", wrong, remedy)
        elif (isinstance(kind, dict) or kind is FREE) and not (value is None and path):
            if not isinstance(value, Mapping):
                yield Problem(f"deepspeed.{name}", value, "not a block", 'write { "key": value, ... }')
            elif isinstance(kind, dict):
                yield from _check_block(value, kind, f"{name}.")
        elif not isinstance(kind, dict):
            values[key] = value
    for problem in fields.check(_section(path), values):
        yield Problem(f"deepspeed.{path}{problem.field}", problem.value, problem.wrong, problem.remedy)


@functools.cache
def _section(path: str) -> type[Section]:
    """The plain values of the block at ``path``."""
    block = known()
    for part in path.split(".")[:-1]:
        block = block[part]
    plain = {key: kind for key, kind in block.items() if not isinstance(kind, dict) and kind is not FREE}
    return library_fields.section(path or "deepspeed", {key: (kind, None) for key, kind in plain.items()})
