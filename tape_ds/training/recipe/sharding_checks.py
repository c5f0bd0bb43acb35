"""Whether offload and ZeRO++ in the DeepSpeed JSON would do anything here, and what they need is there.

Some of these options do nothing, without a word, where their conditions are not met; others fail once the model is
loaded. All of that is said at the start instead. What depends on how many processes there are is checked where there is
more than one: a recipe that is only looked at is not refused for that.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tape_ds.errors import Problem
from tape_ds.training.recipe import deepspeed_config, paths
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.recipe import Recipe

CHECKS = Checks()

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
"""Where torchrun and DeepSpeed's launcher say how many processes a machine has."""


@CHECKS.reads("deepspeed")
def _nvme(recipe: "Recipe") -> Iterator[Problem]:
    """A disk to write to, and what reads and writes it while the GPU computes."""
    asked = []
    for block in ("offload_param", "offload_optimizer"):
        name = f"zero_optimization.{block}"
        if deepspeed_config.lookup(recipe.deepspeed or {}, f"{name}.device") != "nvme":
            continue
        stage = deepspeed_config.stage(recipe.deepspeed)
        if block == "offload_optimizer" and stage != 3:  # the other block is for the checks of the JSON itself
            wrong = f"stage {stage} keeps it in the host's memory, and never writes to a disk"
            yield Problem(f"deepspeed.{name}.device", "nvme", wrong, 'use stage 3, or give "device": "cpu"')
            continue
        given = deepspeed_config.lookup(recipe.deepspeed or {}, f"{name}.nvme_path")
        if given:  # a missing one is for the checks of the JSON itself
            asked.append(f"deepspeed.{name}.device")
            yield from _folder(f"deepspeed.{name}.nvme_path", str(given))
    if asked and (reason := _why_no_asynchronous_io()) is not None:
        remedy = 'install it (on Debian and Ubuntu: apt install libaio-dev), or give "device": "cpu"'
        yield Problem(asked[0], "nvme", reason, remedy)


def _folder(field: str, given: str) -> Iterator[Problem]:
    path = paths.of(given)
    if not paths.is_dir(path):
        yield Problem(field, given, "no such folder", "make it, on a local NVMe disk, on every machine of the job")
    elif not os.access(path, os.W_OK | os.X_OK):
        yield Problem(field, given, "not writable", "give another folder, or change its rights")


def _why_no_asynchronous_io() -> str | None:
    """What DeepSpeed's reader and writer of NVMe disks lacks here; None where it can be built."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if AsyncIOBuilder().is_compatible(verbose=False):
        return None
    return "DeepSpeed reads and writes NVMe disks with libaio, which is not here"


@CHECKS.reads("deepspeed", "use_cpu")
def _zero_plus_plus(recipe: "Recipe") -> Iterator[Problem]:
    """Wang et al. 2023 (arXiv:2306.10209): hpZ, qwZ and qgZ."""
    zero = deepspeed_config.lookup(recipe.deepspeed or {}, "zero_optimization")
    if not isinstance(zero, Mapping):
        return
    for key, reason_of in _OPTIONS.items():
        value = zero.get(key)
        if value in (None, "auto") or value is False or value == _OFF.get(key):
            continue
        stage = deepspeed_config.stage(recipe.deepspeed)
        if stage != 3:
            reason: str | None = f"it is a part of ZeRO stage 3, and would do nothing at stage {stage}"
        else:
            reason = reason_of(recipe, value)
        if reason is not None:
            yield Problem(f"deepspeed.zero_optimization.{key}", value, reason, _REMEDIES.get(key, "remove it"))


def _why_no_secondary_copy(recipe: "Recipe", group: int) -> str | None:
    world = recipe.world_size
    if world == 1:
        return None
    if group >= world:
        return f"all {world} processes are one group: nothing would be gathered within a smaller one"
    return f"does not divide the {world} processes" if world % group else None


def _why_no_quantised_weights(recipe: "Recipe", _: Any) -> str | None:
    return None if _on_cuda(recipe) else "its kernels need a CUDA device"


def _why_no_quantised_gradients(recipe: "Recipe", _: Any) -> str | None:
    if not _on_cuda(recipe):
        return "its kernels need a CUDA device; DeepSpeed accepts it on a CPU and does nothing"
    local = next((int(os.environ[name]) for name in _LOCAL_SIZES if name in os.environ), None)
    if local is not None and recipe.world_size // local < 2:
        return "DeepSpeed quantises gradients between machines, and there is one"
    return None


def _why_no_quantised_frozen(*_: Any) -> str:
    return "weights are frozen when the engine has sharded them already: none would be quantised"


_OPTIONS: dict[str, Callable[["Recipe", Any], str | None]] = {
    "zero_hpz_partition_size": _why_no_secondary_copy,
    "zero_quantized_weights": _why_no_quantised_weights,
    "zero_quantized_gradients": _why_no_quantised_gradients,
    "zero_quantized_nontrainable_weights": _why_no_quantised_frozen,
}
_OFF = {"zero_hpz_partition_size": 1}
_REMEDIES = {
    "zero_hpz_partition_size": "give the processes of one machine, where there are several machines, or remove it",
    "zero_quantized_nontrainable_weights": "remove it; adapters over a 4-bit base are load_in_4bit: true",
}


def _on_cuda(recipe: "Recipe") -> bool:
    import torch

    on_cpu = recipe.trainer_value("use_cpu") or os.environ.get("DS_ACCELERATOR") == "cpu"
    return torch.cuda.is_available() and not on_cpu
