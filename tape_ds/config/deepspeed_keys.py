"""Every key that the installed DeepSpeed reads from its JSON, at every level.

DeepSpeed refuses an unknown key inside the blocks it parses with pydantic and silently ignores one anywhere else, so
``gradient_cliping`` would train without clipping. The keys are those of :mod:`.library_fields`, found in its models and
its constants; what is said of them here is what neither says.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tape_ds import fields
from tape_ds.config import library_fields
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import Section

FREE = object()
"""A block whose keys depend on another key (the arguments of an optimizer, of a scheduler)."""

_DTYPE = Literal["fp32", "fp16", "bf16"] | None

BY_HAND: dict[str, Any] = {
    "optimizer": {"type": str, "params": FREE, "legacy_fusion": bool},
    "scheduler": {"type": str, "params": FREE},
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "gradient_allreduce_op": Literal["mean", "sum"],
    "steps_per_print": int | None,
    "communication_data_type": _DTYPE,
    "seq_parallel_communication_data_type": _DTYPE,
    "sequence_parallel_size": int,
    "log_level": str | None,
    "vocabulary_size": int | None,
}
"""Keys at the top whose default does not tell their type."""

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


def as_meant(block: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the block with its values in the types of their keys, so that 1e9 is a whole number as for DeepSpeed."""
    plain, found = _section(path).model_fields, dict(block)
    for key, value in block.items():
        if key in plain and value != "auto":
            found[key] = fields.as_meant(value, plain[key].annotation)
        elif isinstance(value, Mapping) and isinstance(_keys(path).get(key), dict):
            found[key] = as_meant(value, f"{path}{key}.")
    return found


def known() -> dict[str, Any]:
    """Key -> its type, the block below it, or :data:`FREE`."""
    return library_fields.deepspeed().keys | BY_HAND


def filled() -> list[str]:
    """Dotted names of the keys whose "auto" transformers replaces, with a value of the trainer's or the model's."""
    return library_fields.deepspeed().filled


def _check_block(block: Mapping[str, Any], keys: Mapping[str, Any], path: str) -> Iterator[Problem]:
    values: dict[str, Any] = {}
    gone = library_fields.deepspeed().removed.get(path.rstrip("."), {})
    for key, value in block.items():
        name, kind = f"{path}{key}", keys.get(key)
        if key in gone:
            wrong = f"removed from DeepSpeed: {gone[key]}"
            yield Problem(f"deepspeed.{name}", value, wrong, "remove it")
        elif key not in keys:
            wrong = "unknown key, which DeepSpeed would ignore" if not path else "unknown key"
            yield Problem(f"deepspeed.{name}", value, wrong, did_you_mean(key, keys))
        elif value == "auto":
            if name not in (*filled(), *_AUTO_IS_A_VALUE):
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
    """Return the plain values of the block at ``path``."""
    plain = {key: kind for key, kind in _keys(path).items() if not isinstance(kind, dict) and kind is not FREE}
    return library_fields.section(path or "deepspeed", {key: (kind, None) for key, kind in plain.items()})


def _keys(path: str) -> dict[str, Any]:
    """Return the keys of the block at ``path``."""
    block = known()
    for part in path.split(".")[:-1]:
        block = block[part]
    return block
