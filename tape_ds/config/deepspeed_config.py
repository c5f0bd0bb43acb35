"""The DeepSpeed JSON of a run: found, checked, completed, and compared with the trainer and the machine.

A file in ``ds_configs`` decides how a run is sharded and nothing else. Values that the trainer has too (batch,
precision, clipping, optimizer) are "auto" there and filled in by transformers; another value is a contradiction,
reported before anything loads. So is an offload or a part of ZeRO++ that would silently do nothing, or fail once the
model is loaded. Conditions on the number of processes are checked where there is more than one.
"""

import copy
import importlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError

from tape_ds import paths
from tape_ds.config import library
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import Section
from tape_ds.installation import DS_CONFIGS

FOLDER = DS_CONFIGS
_SHARED = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
"""Keys at the top whose values are the trainer's."""
_DType = Literal["fp32", "fp16", "bf16"] | None


class _Top(Section):
    """Keys at the top of the JSON that have a part in this training. DeepSpeed silently ignores any other, so that a
    run with ``gradient_cliping`` would train without clipping."""

    train_batch_size: int | None = None
    train_micro_batch_size_per_gpu: int | None = None
    gradient_accumulation_steps: int | None = None
    managed_gradient_accumulation: bool = True
    gradient_clipping: float | None = None
    gradient_predivide_factor: float = 1.0
    gradient_allreduce_op: Literal["mean", "sum"] = "mean"
    prescale_gradients: bool = False
    communication_data_type: _DType = None
    seq_parallel_communication_data_type: _DType = None
    sequence_parallel_size: int = 1
    disable_allgather: bool = False
    dataloader_drop_last: bool = False
    disable_python_gc: bool = False
    steps_per_print: int | None = None
    wall_clock_breakdown: bool = False
    memory_breakdown: bool = False
    dump_state: bool = False
    log_level: str | None = None
    zero_allow_untested_optimizer: bool = False
    zero_force_ds_cpu_optimizer: bool = True
    optimizer: dict[str, Any] = {}
    scheduler: dict[str, Any] = {}
    tensor_parallel: dict[str, Any] = {}
    zero_optimization: dict[str, Any] = {}
    bf16: dict[str, Any] = {}
    fp16: dict[str, Any] = {}
    torch_autocast: dict[str, Any] = {}
    data_types: dict[str, Any] = {}
    activation_checkpointing: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {}
    aio: dict[str, Any] = {}
    compile: dict[str, Any] = {}
    flops_profiler: dict[str, Any] = {}
    comms_logger: dict[str, Any] = {}
    tensorboard: dict[str, Any] = {}
    wandb: dict[str, Any] = {}
    comet: dict[str, Any] = {}
    csv_monitor: dict[str, Any] = {}


_MODELS = {
    "zero_optimization": ("runtime.zero.config", "DeepSpeedZeroConfig"),
    "bf16": ("runtime.precision_config", "DeepSpeedBF16Config"),
    "fp16": ("runtime.precision_config", "DeepSpeedFP16Config"),
    "comms_logger": ("comm.config", "CommsLoggerConfig"),
    "tensorboard": ("monitor.config", "TensorBoardConfig"),
    "wandb": ("monitor.config", "WandbConfig"),
    "csv_monitor": ("monitor.config", "CSVConfig"),
    "comet": ("monitor.config", "CometConfig"),
    "compile": ("compile.config", "CompileConfig"),
}
"""Blocks that DeepSpeed checks with a pydantic model."""
_KEYS = {
    "optimizer": "type params legacy_fusion",
    "scheduler": "type params",
    "torch_autocast": "enabled dtype lower_precision_safe_modules",
    "data_types": "grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules",
    "checkpoint": "tag_validation load_universal use_node_local_storage checkpoint_serialization parallel_write writer",
    "aio": "block_size queue_depth intra_op_parallelism single_submit overlap_events use_gds",
    "flops_profiler": "enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file",
}
"""Keys of blocks in which DeepSpeed ignores any other."""
_AUTO_IS_A_VALUE = (
    "data_types.keep_in_fp32_modules",
    "zero_optimization.zenflow.select_strategy",
    "zero_optimization.zenflow.select_interval",
    "zero_optimization.zenflow.update_interval",
)


def read(value: str | Mapping[str, Any], problems: list[Problem]) -> dict[str, Any] | None:
    """Return the configuration of a recipe's ``deepspeed``, completed; None if it cannot be read.

    Args:
        value: the name of a file in ``ds_configs`` (without ``.json``), the path of a JSON file, or the JSON itself.
        problems: gets everything that is wrong with the file and its keys.
    """
    config = copy.deepcopy(dict(value)) if isinstance(value, Mapping) else _read_file(value, problems)
    if config is None:
        return None
    shipped = isinstance(value, str) and (FOLDER / f"{value}.json").is_file()
    found = [] if shipped else list(_check(config))
    problems += found
    broken = {problem.field.removeprefix("deepspeed.").split(".")[0] for problem in found}
    return complete({key: block for key, block in config.items() if key not in broken})


def _check(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield unknown keys and wrong values at every level of a JSON that is not ours."""
    without_autos, autos = _without_autos(config, "")
    for name in autos:
        wrong = "nothing fills this in: DeepSpeed would fall back to its default or fail"
        yield Problem(f"deepspeed.{name}", "auto", wrong, "write the value, or remove the key for DeepSpeed's default")
    broken = set()
    for each in _Top.check(without_autos):
        broken.add(each.field)
        wrong, remedy = each.wrong, each.remedy
        if wrong == "unknown field":
            wrong, remedy = "unknown key, or one without a part in this training", f"{remedy} Or remove it"
        elif _Top.model_fields[each.field].annotation == dict[str, Any]:
            wrong, remedy = "not a block", 'write { "key": value, ... }'
        yield Problem(f"deepspeed.{each.field}", each.value, wrong, remedy)
    for name, block in without_autos.items():
        if name in broken or not isinstance(block, dict):
            continue
        known = _KEYS[name].split() if name in _KEYS else list(block)
        for key in block.keys() - {*known}:
            yield Problem(f"deepspeed.{name}.{key}", block[key], "unknown key", did_you_mean(key, known))
        if name in _MODELS:
            yield from _check_block(name, block)


def _without_autos(block: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[str]]:
    """Return a block without its "auto", and the names of those that transformers does not fill in."""
    found: dict[str, Any] = {}
    wrong = []
    for key, value in block.items():
        if isinstance(value, Mapping):
            found[key], inner = _without_autos(value, f"{path}{key}.")
            wrong += inner
        elif value != "auto":
            found[key] = value
        elif path + key not in (*filled(), *_AUTO_IS_A_VALUE) and not path.endswith("params."):
            wrong.append(path + key)
    return found, wrong


def filled() -> list[str]:
    """Return the dotted names of keys whose "auto" transformers replaces."""
    return re.findall(r'fill_(?:match|only)\(\s*"([\w.]+)"', library.source("transformers.integrations.deepspeed"))


def _check_block(name: str, block: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what DeepSpeed's own model of a block refuses; importing it takes seconds."""
    logging.disable(logging.WARNING)  # DeepSpeed prints which accelerator it found
    try:
        module, kind = _MODELS[name]
        model = getattr(importlib.import_module(f"deepspeed.{module}"), kind)
        for key, value in block.items():
            if not isinstance(value, Mapping | None) and _block_of(model, key) is not None:  # would be a TypeError
                yield Problem(f"deepspeed.{name}.{key}", value, "not a block", 'write { "key": value, ... }')
                return
        model(**block)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            *path, key = map(str, each["loc"]) if each["loc"] else ("",)
            field = ".".join(("deepspeed", name, *path, *([key] if key else [])))
            wrong, remedy = "wrong type", each["msg"]
            if each["type"] == "extra_forbidden":
                inner: Any = model
                for part in path:
                    inner = _block_of(inner, part)
                known = [name for own, at in inner.model_fields.items() for name in (own, at.alias) if name]
                wrong, remedy = "unknown key", f"{did_you_mean(key, known)} Or remove it"
            elif each["type"].startswith(("greater_than", "less_than", "value_error", "assertion")):
                wrong = "DeepSpeed does not take it"
            yield Problem(field, each["input"], wrong, remedy)
    except (AssertionError, TypeError, ValueError) as error:
        yield Problem(f"deepspeed.{name}", dict(block), f"DeepSpeed refuses it: {error}", "change what it names")
    finally:
        logging.disable(logging.NOTSET)


def _block_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of the block under a key of another one; None where the key has a plain value."""
    kind = model.model_fields[key].annotation if key in model.model_fields else None
    kinds = (each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, BaseModel))
    return next(kinds, None)


def _read_file(name: str, problems: list[Problem]) -> dict[str, Any] | None:
    candidates = (FOLDER / f"{name}.json", paths.of(name), FOLDER / name)
    path = next((each for each in candidates if os.path.isfile(each)), None)
    if path is None:
        known = sorted(file.stem for file in FOLDER.glob("*.json"))
        remedy = f"{did_you_mean(name, known)} (in {FOLDER}), or give the path of a JSON file"
        problems.append(Problem("deepspeed", name, "no such DeepSpeed configuration", remedy))
        return None
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in pairs]
        repeated.extend(sorted({key for key in names if names.count(key) > 1}))
        return dict(pairs)

    try:
        config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except (OSError, ValueError, RecursionError) as error:
        remedy = "correct the JSON there (UTF-8, no comments, no trailing commas)"
        problems.append(Problem("deepspeed", str(path), f"not readable as JSON ({error})", remedy))
        return None
    problems += [
        Problem(f"deepspeed.{key}", path.name, "written twice in the same block", "keep one of the two")
        for key in repeated
    ]
    if not isinstance(config, dict):
        problems.append(Problem("deepspeed", str(path), "not a JSON object", 'write { "key": value, ... }'))
        return None
    return config


def complete(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with "auto" for the trainer's values that it leaves out, for which DeepSpeed would take its own
    defaults: no clipping, fp32 weights."""
    left_out = dict.fromkeys((key for key in _SHARED if key not in config), "auto")
    return config | left_out | {block: {"enabled": "auto"} | config.get(block, {}) for block in ("bf16", "fp16")}


def lookup(config: Mapping[str, Any], name: str) -> Any:
    """Return the value under a dotted name, or None."""
    place: Any = config
    for part in name.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    return place


def stage(config: Mapping[str, Any] | None) -> int:
    return int(lookup(config or {}, "zero_optimization.stage") or 0)


def check_against_trainer(config: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield values of the JSON that differ from the trainer's.

    Args:
        config: the configuration, completed.
        expected: dotted name of the JSON -> (name of the trainer's field, value).
    """
    for name, (field, value) in expected.items():
        written = lookup(config, name)
        if written not in (None, "auto", value):
            wrong = f"the trainer has {field} = {value!r}"
            yield Problem(f"deepspeed.{name}", written, wrong, f'write "auto" in the JSON, or change {field}')


_SCHEDULERS = {
    "WarmupLR": ("constant_with_warmup", "warmup_min_lr warmup_max_lr"),
    "WarmupDecayLR": ("linear", "warmup_min_lr warmup_max_lr total_num_steps"),
    "WarmupCosineLR": ("cosine", "total_num_steps warmup_min_ratio cos_min_ratio"),
}
"""DeepSpeed's schedulers -> the trainer's name for the same, and the parameters that only some of them have."""
_ADAMW = "lr betas eps weight_decay bias_correction amsgrad foreach torch_adam adam_w_mode fp32_optimizer_states"


def check_replacements(config: Mapping[str, Any], lr_scheduler_type: str, optim: str) -> Iterator[Problem]:
    """Yield why a scheduler or an optimizer of the JSON cannot replace the trainer's: it has to mean the same."""
    kind = str(lookup(config, "optimizer.type") or "")
    schedule, own = _SCHEDULERS.get(str(lookup(config, "scheduler.type")), ("", ""))
    same_optimizer = kind.lower() in ("adam", "adamw") and optim.startswith("adamw_torch")
    for name, field, trainers, same, known in (
        ("scheduler", "lr_scheduler_type", lr_scheduler_type, schedule == lr_scheduler_type, own),
        ("optimizer", "optim", optim, same_optimizer, _ADAMW),
    ):
        block = config.get(name)
        if not isinstance(block, Mapping):
            continue
        if not same:
            wrong = f"it would replace the trainer's {field} = {trainers!r}"
            yield Problem(f"deepspeed.{name}.type", block.get("type"), wrong, f"remove the {name} block from the JSON")
            continue
        keys = known.split() + ["warmup_num_steps", "warmup_type"] * (name == "scheduler")
        for key, value in (block.get("params") or {}).items():
            place = f"{name}.params.{key}"
            if key not in keys:
                yield Problem(f"deepspeed.{place}", value, "unknown key", did_you_mean(key, keys))
            elif value == "auto" and place not in filled():
                yield Problem(
                    f"deepspeed.{place}", value, "nothing fills this in", "write the value, or remove the key"
                )


def check_itself(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield settings that would do harm, or nothing, in this training."""
    for name in ("bf16.check_grad_overflow", "zero_optimization.compute_grad_norm"):
        if lookup(config, name) is False:
            wrong = "a gradient that is not finite would go into the weights unseen"
            yield Problem(f"deepspeed.{name}", False, wrong, "remove it")
    name = "data_types.grad_accum_dtype"
    if (kind := lookup(config, name)) is not None and stage(config) == 0:
        wrong = "without ZeRO, DeepSpeed sums gradients in the model's precision"
        yield Problem(f"deepspeed.{name}", kind, wrong, "use stage 1, 2 or 3, or remove it")
    block = config.get("activation_checkpointing")
    if isinstance(block, Mapping) and any(block.values()):
        wrong = "only models written for DeepSpeed's own checkpointing read this block; it would do nothing"
        remedy = "remove it and set activation_checkpointing: true in the recipe"
        yield Problem("deepspeed.activation_checkpointing", dict(block), wrong, remedy)


def check_offload(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield an offload that its stage does not do, a disk that cannot be written to, and a missing library for it."""
    level, written = stage(config), []
    for block, stages in (("offload_param", (3,)), ("offload_optimizer", (1, 2, 3))):
        name = f"zero_optimization.{block}"
        device, folder = lookup(config, f"{name}.device"), lookup(config, f"{name}.nvme_path")
        field, path = f"deepspeed.{name}.nvme_path", paths.of(str(folder))
        if device in (None, "none"):
            continue
        if level not in stages:
            wrong = f"ZeRO stage {level} does not offload this"
            yield Problem(f"deepspeed.{name}.device", device, wrong, f"use stage {stages[-1]}")
        elif device == "nvme" and level != 3:
            wrong = f"stage {level} keeps it in the host's memory, and never writes to a disk"
            yield Problem(f"deepspeed.{name}.device", "nvme", wrong, 'use stage 3, or give "device": "cpu"')
        elif device == "nvme" and not folder:
            yield Problem(field, None, "missing for device nvme", "give a folder on a local NVMe disk")
        elif device == "nvme":
            written.append(f"deepspeed.{name}.device")
            if not os.path.isdir(path):
                remedy = "make it, on a local NVMe disk, on every machine of the job"
                yield Problem(field, str(folder), "no such folder", remedy)
            elif not os.access(path, os.W_OK | os.X_OK):
                yield Problem(field, str(folder), "not writable", "give another folder, or change its rights")
    if written and (reason := _why_no_asynchronous_io()) is not None:
        remedy = 'install it (on Debian and Ubuntu: apt install libaio-dev), or give "device": "cpu"'
        yield Problem(written[0], "nvme", reason, remedy)


def _why_no_asynchronous_io() -> str | None:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if AsyncIOBuilder().is_compatible(verbose=False):
        return None
    return "DeepSpeed reads and writes NVMe disks with libaio, which is not installed"


def check_zero_plus_plus(config: Mapping[str, Any], world: int, use_cpu: bool) -> Iterator[Problem]:
    """Yield parts of ZeRO++ (Wang et al. 2023, arXiv:2306.10209) that would silently do nothing.

    Args:
        config: the JSON.
        world: processes of the job.
        use_cpu: whether the run leaves a GPU alone.
    """
    for key in ("hpz_partition_size", "quantized_weights", "quantized_gradients", "quantized_nontrainable_weights"):
        name = f"zero_optimization.zero_{key}"
        value, wrong, remedy = lookup(config, name), "", "remove it"
        if value is not True and value in (None, "auto", False, 1):
            continue
        if stage(config) != 3:
            wrong = f"it is a part of ZeRO stage 3, and would do nothing at stage {stage(config)}"
        elif key == "hpz_partition_size":
            remedy = "give the processes of one machine, where there are several, or remove it"
            if value >= world > 1:
                wrong = f"all {world} processes are one group: nothing would be gathered within a smaller one"
            elif world > 1 and world % value:
                wrong = f"does not divide the {world} processes"
        elif key == "quantized_nontrainable_weights":
            wrong = "weights are frozen when the engine has sharded them already: none would be quantised"
            remedy = "remove it; adapters over a 4-bit base are load_in_4bit: true"
        else:
            import torch

            # set by torchrun and by DeepSpeed's launcher: the processes of this machine
            local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 0)
            if use_cpu or os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
                wrong = "its kernels need a CUDA device"
            elif key == "quantized_gradients" and local and world // local < 2:
                wrong = "DeepSpeed quantises gradients between machines, and there is one"
        if wrong:
            yield Problem(f"deepspeed.{name}", value, wrong, remedy)
