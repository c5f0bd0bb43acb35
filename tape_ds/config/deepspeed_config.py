"""The DeepSpeed JSON of a run: found, read, completed, and compared with the trainer and the machine.

A file in ``ds_configs`` decides how a run is sharded and nothing else. What the trainer also knows (batch, precision,
clipping, optimizer) is "auto" there and filled in by transformers; a value that says otherwise than the trainer is a
contradiction, reported before anything loads. So is an offload or a part of ZeRO++ that would do nothing, without a
word, or fail once the model is loaded. What depends on how many processes there are is checked where there is more than
one: a recipe that is only looked at is not refused for that.
"""

import copy
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from tape_ds import paths
from tape_ds.config import deepspeed_keys, library_fields
from tape_ds.errors import Problem, did_you_mean
from tape_ds.installation import DS_CONFIGS

FOLDER = DS_CONFIGS
_SHARED = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
"""Keys at the top whose values are the trainer's."""


def read(value: str | Mapping[str, Any], problems: list[Problem]) -> dict[str, Any] | None:
    """Return the configuration behind a recipe's ``deepspeed``, completed; None if it could not be read.

    Args:
        value: the name of a file in ``ds_configs`` (without ``.json``), the path of a JSON file, or the JSON itself.
        problems: gets everything that is wrong with the file and its keys.
    """
    config = copy.deepcopy(dict(value)) if isinstance(value, Mapping) else _read_file(value, problems)
    if config is None:
        return None
    config = deepspeed_keys.as_meant(config)
    found = list(deepspeed_keys.check(config))
    problems += found
    broken = {problem.field.removeprefix("deepspeed.").split(".")[0] for problem in found}
    return complete({key: block for key, block in config.items() if key not in broken})


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
        remedy = "mend the JSON there (UTF-8, no comments, no trailing commas)"
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
    """``config`` with "auto" for what it leaves out and the trainer knows.

    Left out, DeepSpeed would take its own default: no clipping, fp32 weights beside a trainer that says bf16.
    """
    left_out = dict.fromkeys((key for key in _SHARED if key not in config), "auto")
    return config | left_out | {block: {"enabled": "auto"} | config.get(block, {}) for block in ("bf16", "fp16")}


def lookup(config: Mapping[str, Any], name: str) -> Any:
    """Return the value under a dotted name, None where there is none."""
    place: Any = config
    for part in name.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    return place


def stage(config: Mapping[str, Any] | None) -> int:
    """ZeRO stage, 0 without one."""
    return int(lookup(config or {}, "zero_optimization.stage") or 0)


def check_against_trainer(config: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Problem]:
    """Values of the JSON that differ from what the trainer will do.

    Args:
        config: the configuration, completed.
        expected: dotted name of the JSON -> (name of the trainer's field, value).
    """
    for name, (field, value) in expected.items():
        written = lookup(config, name)
        if written in (None, "auto") or written == value:
            continue
        wrong = f"the trainer says {field} = {value!r}"
        yield Problem(f"deepspeed.{name}", written, wrong, f'write "auto" in the JSON, or change {field}')


def check_scheduler(config: Mapping[str, Any], lr_scheduler_type: str) -> Iterator[Problem]:
    """A scheduler in the JSON replaces the trainer's without a word; allowed only where both mean the same."""
    block = config.get("scheduler")
    if not isinstance(block, Mapping):
        return
    kind = block.get("type")
    if library_fields.SCHEDULERS.get(str(kind)) != lr_scheduler_type:
        wrong = f"it would replace the trainer's lr_scheduler_type = {lr_scheduler_type!r}"
        yield Problem("deepspeed.scheduler.type", kind, wrong, "remove the scheduler block from the JSON")
        return
    yield from _check_params(block, "scheduler", library_fields.deepspeed().schedulers[str(kind)])


def check_optimizer(config: Mapping[str, Any], optim: str) -> Iterator[Problem]:
    """An optimizer in the JSON replaces the trainer's; allowed only where both are AdamW."""
    block = config.get("optimizer")
    if not isinstance(block, Mapping):
        return
    kind = str(block.get("type", ""))
    if kind.lower() not in ("adam", "adamw") or not optim.startswith("adamw_torch"):
        wrong = f"it would replace the trainer's optim = {optim!r}"
        yield Problem("deepspeed.optimizer.type", kind, wrong, "remove the optimizer block from the JSON")
        return
    known = {"lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "foreach"}
    yield from _check_params(block, "optimizer", known | {"torch_adam", "adam_w_mode", "fp32_optimizer_states"})


def _check_params(block: Mapping[str, Any], name: str, known: set[str]) -> Iterator[Problem]:
    for key, value in (block.get("params") or {}).items():
        field = f"{name}.params.{key}"
        if key not in known:
            yield Problem(f"deepspeed.{field}", value, "unknown key", did_you_mean(key, known))
        elif value == "auto" and field not in deepspeed_keys.filled():
            yield Problem(f"deepspeed.{field}", value, "nothing fills this in", "write the value, or remove the key")


def check_itself(config: Mapping[str, Any]) -> Iterator[Problem]:
    """What the JSON asks for that would do harm, or nothing, in this training."""
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
    """An offload that its stage does not do, a disk that cannot be written to, and what reads and writes it while the
    GPU computes."""
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
    """Return what DeepSpeed's reader and writer of NVMe disks lacks here; None where it can be built."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if AsyncIOBuilder().is_compatible(verbose=False):
        return None
    return "DeepSpeed reads and writes NVMe disks with libaio, which is not here"


_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
"""Where torchrun and DeepSpeed's launcher say how many processes a machine has."""


def check_zero_plus_plus(config: Mapping[str, Any], world: int, use_cpu: bool) -> Iterator[Problem]:
    """ZeRO++ (Wang et al. 2023, arXiv:2306.10209): hpZ, qwZ and qgZ, some of which do nothing where their conditions
    are not met.

    Args:
        config: the JSON.
        world: processes of the job.
        use_cpu: whether a GPU would be left alone.
    """
    for key, (off, remedy) in _ZERO_PLUS_PLUS.items():
        value = lookup(config, f"zero_optimization.{key}")
        if value in (None, "auto", off):
            continue
        reason: str | None = f"it is a part of ZeRO stage 3, and would do nothing at stage {stage(config)}"
        if stage(config) == 3:
            reason = _why_nothing(key, value, world, use_cpu)
        if reason is not None:
            yield Problem(f"deepspeed.zero_optimization.{key}", value, reason, remedy)


_ZERO_PLUS_PLUS = {
    "zero_hpz_partition_size": (1, "give the processes of one machine, where there are several, or remove it"),
    "zero_quantized_weights": (False, "remove it"),
    "zero_quantized_gradients": (False, "remove it"),
    "zero_quantized_nontrainable_weights": (False, "remove it; adapters over a 4-bit base are load_in_4bit: true"),
}
"""Key -> the value that asks for nothing, and the remedy."""


def _why_nothing(key: str, value: Any, world: int, use_cpu: bool) -> str | None:
    """Why a part of ZeRO++ would do nothing at stage 3; None: it would do what it is for."""
    if key == "zero_hpz_partition_size":
        if value >= world > 1:
            return f"all {world} processes are one group: nothing would be gathered within a smaller one"
        return f"does not divide the {world} processes" if world > 1 and world % value else None
    if key == "zero_quantized_nontrainable_weights":
        return "weights are frozen when the engine has sharded them already: none would be quantised"
    import torch

    if use_cpu or os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return "its kernels need a CUDA device"
    local = next((int(os.environ[name]) for name in _LOCAL_SIZES if name in os.environ), None)
    if key == "zero_quantized_gradients" and local is not None and world // local < 2:
        return "DeepSpeed quantises gradients between machines, and there is one"
    return None
