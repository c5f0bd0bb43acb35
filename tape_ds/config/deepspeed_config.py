"""The DeepSpeed JSON of a run: found, checked, completed, and compared with the trainer and the machine.

A file in ``ds_configs`` decides how a run is sharded and nothing else. Values that the trainer has too (batch,
precision, clipping, optimizer) are "auto" there and filled in by transformers; another value is refused before anything
loads, and so is an offload or a part of ZeRO++ that would silently do nothing, or fail once the model is loaded.
"""

import copy
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tape_ds import paths
from tape_ds.config import deepspeed_keys, library
from tape_ds.config.deepspeed_keys import lookup
from tape_ds.errors import Problem, did_you_mean, is_main_process
from tape_ds.installation import DS_CONFIGS
from tape_ds.models.files import json_file

logger = logging.getLogger(__name__)

FOLDER = DS_CONFIGS
_SHARED = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
"""Keys at the top whose values are the trainer's."""
_ADAM = ("lr", "betas", "eps", "weight_decay")
_FILLED_IN: dict[str, dict[str, tuple[str, ...]]] = {
    "optimizer": {"adam": _ADAM, "adamw": _ADAM},
    "scheduler": {
        "warmuplr": ("warmup_max_lr", "warmup_num_steps"),
        "warmupdecaylr": ("warmup_max_lr", "warmup_num_steps", "total_num_steps"),
        "warmupcosinelr": ("warmup_num_steps", "total_num_steps"),
    },
}
"""Parameters of DeepSpeed's optimizers and schedulers, by their type, whose values are the trainer's."""
_AUTO_IS_A_VALUE = (
    "data_types.keep_in_fp32_modules",
    "zero_optimization.zenflow.select_strategy",
    "zero_optimization.zenflow.select_interval",
    "zero_optimization.zenflow.update_interval",
)
_SCHEDULERS = {
    "WarmupLR": "constant_with_warmup",
    "WarmupDecayLR": "linear",
    "WarmupCosineLR": "cosine",
}
"""DeepSpeed's schedulers -> the trainer's name for the same."""


def read(value: str | Mapping[str, Any], problems: list[Problem]) -> dict[str, Any] | None:
    """Return a recipe's DeepSpeed configuration; None if it cannot be read. It has "auto" for the trainer's values that
    it leaves out, for which DeepSpeed would take its own defaults (no clipping, fp32 weights).

    Args:
        value: the name of a file in ``ds_configs`` (without ``.json``), the path of a JSON file, or the JSON itself.
        problems: gets everything that is wrong with the file and its keys.
    """
    content = _read_file(value, problems) if isinstance(value, str) else copy.deepcopy(dict(value))
    if content is None:
        return None
    # null: DeepSpeed's default
    config = {key: block for key, block in content.items() if block is not None}
    shipped = isinstance(value, str) and (FOLDER / f"{value}.json").is_file()
    if not shipped:
        config = _checked(config, problems)
    _fill_in(config)
    return config


def _read_file(value: str, problems: list[Problem]) -> dict[str, Any] | None:
    """Return the JSON object of a file, given as in :func:`read`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in pairs]
        for key in sorted(set(names)):
            if names.count(key) > 1:
                wrong = "written twice in the same block"
                problems.append(Problem(f"deepspeed.{key}", value, wrong, "keep one of the two"))
        return dict(pairs)

    candidates = (FOLDER / f"{value}.json", paths.of(value), FOLDER / value)
    path = next(filter(os.path.isfile, candidates), None)
    if path is None:
        known = sorted(file.stem for file in FOLDER.glob("*.json"))
        remedy = f"{did_you_mean(value, known)} (in {FOLDER}), or give the path of a JSON file"
        problems.append(Problem("deepspeed", value, "no such DeepSpeed configuration", remedy))
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique)
    except (OSError, ValueError, RecursionError) as error:
        remedy = json_file.how_to_repair(error) or "correct the JSON there (UTF-8)"
        problems.append(Problem("deepspeed", str(path), f"not readable as JSON ({error})", remedy))
        return None
    if not isinstance(config, dict):
        problems.append(
            Problem("deepspeed", str(path), "not a JSON object", 'write { "key": value, ... }')
        )
        return None
    return config


def _checked(config: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the blocks in which nothing is wrong, with DeepSpeed's present names."""
    broken = set()
    for problem in _check(config):
        problems.append(problem)
        broken.add(problem.field.removeprefix("deepspeed.").split(".")[0])
    whole = {key: block for key, block in config.items() if key not in broken}
    renamed, notes = deepspeed_keys.with_present_names(whole)
    if is_main_process():
        for note in notes:
            logger.warning("%s", note)
    return renamed


def _fill_in(config: dict[str, Any]) -> None:
    """Give "auto" to the trainer's values that a JSON leaves out."""
    for block, by_type in _FILLED_IN.items():
        if block in config:
            names = by_type.get(str(config[block].get("type")).lower(), ())
            params = dict.fromkeys(names, "auto") | (config[block].get("params") or {})
            config[block] = config[block] | {"params": params}
    for key in _SHARED:
        config.setdefault(key, "auto")
    for precision in ("bf16", "fp16"):
        config[precision] = {"enabled": "auto"} | config.get(precision, {})


def _check(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield unknown keys and wrong values at every level of a JSON that is not ours."""
    without_autos, autos = _without_autos(config, "")
    for name in autos:
        wrong = "nothing fills this in: DeepSpeed would fall back to its default or fail"
        yield Problem(
            f"deepspeed.{name}",
            "auto",
            wrong,
            "write the value, or remove the key for DeepSpeed's default",
        )
    yield from deepspeed_keys.check(without_autos)


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
    return re.findall(
        r'fill_(?:match|only)\(\s*"([\w.]+)"', library.source("transformers.integrations.deepspeed")
    )


def stage(config: Mapping[str, Any] | None) -> int:
    return int(lookup(config or {}, "zero_optimization.stage") or 0)


def check_itself(
    config: Mapping[str, Any], lr_scheduler_type: str, optim: str
) -> Iterator[Problem]:
    """Yield settings that would do harm, or nothing, in this training, and a scheduler or an optimizer that is not the
    trainer's."""
    if "scheduler" in config:
        schedule = lookup(config, "scheduler.type")
        if _SCHEDULERS.get(str(schedule)) != lr_scheduler_type:
            wrong = f"it would replace the trainer's lr_scheduler_type = {lr_scheduler_type!r}"
            yield Problem(
                "deepspeed.scheduler.type",
                schedule,
                wrong,
                "remove the scheduler block from the JSON",
            )
    if "optimizer" in config:
        optimizer = lookup(config, "optimizer.type")
        if str(optimizer).lower() not in ("adam", "adamw") or not optim.startswith("adamw_torch"):
            wrong = f"it would replace the trainer's optim = {optim!r}"
            yield Problem(
                "deepspeed.optimizer.type",
                optimizer,
                wrong,
                "remove the optimizer block from the JSON",
            )
    for name in ("bf16.check_grad_overflow", "zero_optimization.compute_grad_norm"):
        if lookup(config, name) is False:
            wrong = "a gradient that is not finite would go into the weights unseen"
            yield Problem(f"deepspeed.{name}", False, wrong, "remove it")
    name = "data_types.grad_accum_dtype"
    kind = lookup(config, name)
    if kind is not None and stage(config) == 0:
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
        device = lookup(config, f"{name}.device")
        if device in (None, "none"):
            continue
        if level not in stages:
            wrong = f"ZeRO stage {level} does not offload this"
            yield Problem(f"deepspeed.{name}.device", device, wrong, f"use stage {stages[-1]}")
        elif device == "nvme" and level != 3:
            wrong = f"stage {level} keeps it in the host's memory, and never writes to a disk"
            yield Problem(
                f"deepspeed.{name}.device", "nvme", wrong, 'use stage 3, or give "device": "cpu"'
            )
        elif device == "nvme":
            yield from _check_disk(f"deepspeed.{name}", lookup(config, f"{name}.nvme_path"))

    for key in (
        "hpz_partition_size",
        "quantized_weights",
        "quantized_gradients",
        "quantized_nontrainable_weights",
    ):
        name = f"zero_optimization.zero_{key}"
        value = lookup(config, name)
        if value is not True and value in (None, "auto", False, 1):
            # it is off; True is none of these, though it equals 1
            continue
        wrong = ""
        remedy = "remove it"
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

            if (
                use_cpu
                or os.environ.get("DS_ACCELERATOR") == "cpu"
                or not torch.cuda.is_available()
            ):
                wrong = "its kernels need a CUDA device"
        if wrong:
            yield Problem(f"deepspeed.{name}", value, wrong, remedy)


def _check_disk(block: str, folder: Any) -> Iterator[Problem]:
    """Yield why a folder cannot take what is offloaded; ``block``: the field that names it."""
    if not folder:
        yield Problem(
            f"{block}.nvme_path",
            None,
            "missing for device nvme",
            "give a folder on a local NVMe disk",
        )
        return
    path = paths.of(str(folder))
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        remedy = "make it, on a local NVMe disk, on every machine of the job"
        yield Problem(
            f"{block}.nvme_path", str(folder), "no such folder, or it is not writable", remedy
        )
        return

    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=False):
        wrong = "DeepSpeed reads and writes NVMe disks with libaio, which is not installed"
        remedy = (
            'install it (on Debian and Ubuntu: apt install libaio-dev), or give "device": "cpu"'
        )
        yield Problem(f"{block}.device", "nvme", wrong, remedy)
