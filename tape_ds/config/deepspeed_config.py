"""The DeepSpeed JSON of a run: found, checked, completed, and compared with the trainer and the machine.

A file in ``ds_configs`` decides how a run is sharded and nothing else. Values that the trainer has too (batch,
precision, clipping, optimizer) are "auto" there and filled in by transformers; another value is refused before anything
loads, and so is an offload or a part of ZeRO++ that would silently do nothing, or fail once the model is loaded.
"""

import copy
import importlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError, create_model

from tape_ds import paths
from tape_ds.config import library
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import Section
from tape_ds.installation import DS_CONFIGS

FOLDER = DS_CONFIGS
_SHARED = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
"""Keys at the top whose values are the trainer's."""
_TYPES: dict[Any, str] = {
    int: "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps sequence_parallel_size "
    "steps_per_print",
    float: "gradient_clipping gradient_predivide_factor",
    bool: "managed_gradient_accumulation prescale_gradients disable_allgather dataloader_drop_last disable_python_gc "
    "wall_clock_breakdown memory_breakdown dump_state zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
    str: "log_level",
    Literal["mean", "sum"]: "gradient_allreduce_op",
    Literal["fp32", "fp16", "bf16"]: "communication_data_type seq_parallel_communication_data_type",
    dict[str, Any]: "optimizer scheduler tensor_parallel zero_optimization bf16 fp16 torch_autocast data_types "
    "activation_checkpointing checkpoint aio compile flops_profiler comms_logger tensorboard wandb comet csv_monitor",
}
"""Type -> keys at the top that have a part in this training. DeepSpeed silently ignores any other, so that a run with
``gradient_cliping`` would train without clipping."""
_TOP: dict[str, Any] = {name: (kind | None, None) for kind, names in _TYPES.items() for name in names.split()}
_Top: type[Section] = create_model("_Top", __base__=Section, **_TOP)

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
    "optimizer.params": "lr betas eps weight_decay bias_correction amsgrad foreach torch_adam adam_w_mode "
    "fp32_optimizer_states",
    "scheduler": "type params",
    "scheduler.params": "warmup_num_steps warmup_type warmup_min_lr warmup_max_lr total_num_steps warmup_min_ratio "
    "cos_min_ratio",
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
_SCHEDULERS = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""DeepSpeed's schedulers -> the trainer's name for the same."""


def read(value: str | Mapping[str, Any], problems: list[Problem]) -> dict[str, Any] | None:
    """Return a recipe's DeepSpeed configuration; None if it cannot be read. It has "auto" for the trainer's values that
    it leaves out, for which DeepSpeed would take its own defaults (no clipping, fp32 weights).

    Args:
        value: the name of a file in ``ds_configs`` (without ``.json``), the path of a JSON file, or the JSON itself.
        problems: gets everything that is wrong with the file and its keys.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in pairs]
        for key in sorted({key for key in names if names.count(key) > 1}):
            wrong = "written twice in the same block"
            problems.append(Problem(f"deepspeed.{key}", str(value), wrong, "keep one of the two"))
        return dict(pairs)

    config: Any = copy.deepcopy(value)
    if isinstance(value, str):
        candidates = (FOLDER / f"{value}.json", paths.of(value), FOLDER / value)
        path = next((each for each in candidates if os.path.isfile(each)), None)
        if path is None:
            known = sorted(file.stem for file in FOLDER.glob("*.json"))
            remedy = f"{did_you_mean(value, known)} (in {FOLDER}), or give the path of a JSON file"
            problems.append(Problem("deepspeed", value, "no such DeepSpeed configuration", remedy))
            return None
        try:
            config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
        except (OSError, ValueError, RecursionError) as error:
            remedy = "correct the JSON there (UTF-8, no comments, no trailing commas)"
            problems.append(Problem("deepspeed", str(path), f"not readable as JSON ({error})", remedy))
            return None
        if not isinstance(config, dict):
            problems.append(Problem("deepspeed", str(path), "not a JSON object", 'write { "key": value, ... }'))
            return None

    shipped = isinstance(value, str) and (FOLDER / f"{value}.json").is_file()
    found = [] if shipped else list(_check(config))
    problems += found
    broken = {problem.field.removeprefix("deepspeed.").split(".")[0] for problem in found}
    config = {key: block for key, block in config.items() if key not in broken}
    left_out = dict.fromkeys((key for key in _SHARED if key not in config), "auto")
    return config | left_out | {block: {"enabled": "auto"} | config.get(block, {}) for block in ("bf16", "fp16")}


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
        elif each.field in _TYPES[dict[str, Any]].split():
            wrong, remedy = "not a block", 'write { "key": value, ... }'
        yield Problem(f"deepspeed.{each.field}", each.value, wrong, remedy)

    for name, names in _KEYS.items():
        block, known = lookup(without_autos, name), names.split()
        for key, value in block.items() if isinstance(block, Mapping) else ():
            if key not in known:
                yield Problem(f"deepspeed.{name}.{key}", value, "unknown key", did_you_mean(key, known))
    for name in _MODELS.keys() & without_autos.keys() - broken:
        yield from _check_block(name, without_autos[name])


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
        elif path + key not in (*filled(), *_AUTO_IS_A_VALUE):
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
            *path, key = map(str, each["loc"] or ("",))
            field = ".".join(("deepspeed", name, *path, key)).rstrip(".")
            wrong, remedy = "wrong type or value", each["msg"]
            if each["type"] == "extra_forbidden":
                inner: Any = model
                for part in path:
                    inner = _block_of(inner, part)
                known = [name for own, at in inner.model_fields.items() for name in (own, at.alias) if name]
                wrong, remedy = "unknown key", f"{did_you_mean(key, known)} Or remove it"
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


def check_itself(config: Mapping[str, Any], lr_scheduler_type: str, optim: str) -> Iterator[Problem]:
    """Yield settings that would do harm, or nothing, in this training, and a scheduler or an optimizer that is not the
    trainer's."""
    kind, schedule = lookup(config, "optimizer.type"), lookup(config, "scheduler.type")
    is_adam = str(kind).lower() in ("adam", "adamw") and optim.startswith("adamw_torch")
    for name, field, trainers, given, same in (
        ("scheduler", "lr_scheduler_type", lr_scheduler_type, schedule, _SCHEDULERS.get(schedule) == lr_scheduler_type),
        ("optimizer", "optim", optim, kind, is_adam),
    ):
        if name in config and not same:
            wrong = f"it would replace the trainer's {field} = {trainers!r}"
            yield Problem(f"deepspeed.{name}.type", given, wrong, f"remove the {name} block from the JSON")
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


def check_sharding(config: Mapping[str, Any], world: int, use_cpu: bool) -> Iterator[Problem]:
    """Yield an offload that its stage does not do, a disk that cannot be written to, and parts of ZeRO++ (Wang et al.
    2023, arXiv:2306.10209) that would silently do nothing.

    Args:
        config: the JSON.
        world: processes of the job.
        use_cpu: whether the run leaves a GPU alone.
    """
    level = stage(config)
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
        elif device == "nvme" and not (os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)):
            remedy = "make it, on a local NVMe disk, on every machine of the job"
            yield Problem(field, str(folder), "no such folder, or it is not writable", remedy)
        elif device == "nvme":
            from deepspeed.ops.op_builder import AsyncIOBuilder

            if not AsyncIOBuilder().is_compatible(verbose=False):
                wrong = "DeepSpeed reads and writes NVMe disks with libaio, which is not installed"
                remedy = 'install it (on Debian and Ubuntu: apt install libaio-dev), or give "device": "cpu"'
                yield Problem(f"deepspeed.{name}.device", "nvme", wrong, remedy)

    for key in ("hpz_partition_size", "quantized_weights", "quantized_gradients", "quantized_nontrainable_weights"):
        name = f"zero_optimization.zero_{key}"
        value, wrong, remedy = lookup(config, name), "", "remove it"
        if value is not True and value in (None, "auto", False, 1):
            continue
        if level != 3:
            wrong = f"it is a part of ZeRO stage 3, and would do nothing at stage {level}"
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

            if use_cpu or os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
                wrong = "its kernels need a CUDA device"
        if wrong:
            yield Problem(f"deepspeed.{name}", value, wrong, remedy)
