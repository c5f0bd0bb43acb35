"""The device of a run, and whether it was intended: training that falls back to a CPU takes days without a message."""

import os

import torch

from tape_ds import installation
from tape_ds.config.recipe import Recipe
from tape_ds.distributed import process_info
from tape_ds.errors import Problem
from tape_ds.kernels import jit
from tape_ds.planning import shape
from tape_ds.resilience import stopping

NO_GPU = "no GPU is visible"
LARGEST = 1e9
"""Parameters of the largest model that a CPU trains without ``allow_cpu``."""


def why_cpu(recipe: Recipe) -> str | None:
    if installation.FOUND_NO_GPU in os.environ and not recipe.trainer.use_cpu:
        return NO_GPU
    if recipe.chosen_cpu is not None:
        return recipe.chosen_cpu
    if torch.accelerator.is_available():
        return None
    return NO_GPU


def cpu_multiplies_bf16() -> bool:
    """Return whether the CPU has instructions for products of bf16 (AVX-512 BF16, AMX), by what oneDNN says of it; True
    in a build without oneDNN. Other CPUs compute them right, but slowly: one core with AVX2 8 GFLOP/s in place of 70 in
    fp32."""
    if not torch.backends.mkldnn.is_available():
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def describe(recipe: Recipe) -> str:
    world = recipe.world_size
    processes = "1 process" if world == 1 else f"{world} processes"
    if (why := why_cpu(recipe)) is not None:
        line = f"{processes} on the CPU ({why})"
        if recipe.trainer.bf16 and not cpu_multiplies_bf16():
            line += "; it has no instructions for bf16: with --no_bf16 its matrix products are several times faster"
        return line
    kind = str(torch.accelerator.current_accelerator())
    name = torch.cuda.get_device_name() if kind == "cuda" else kind
    here = torch.accelerator.device_count()
    on_node = process_info.current().on_node or 1
    if on_node > here:
        return f"{processes}, {on_node} of them on this machine, which has {here} x {name}: TOO FEW"
    visible = f" (this machine has {here})" if here != world else ""
    lacking = jit.no_compiler() if kind == "cuda" else None
    slower = ""
    if lacking is not None:
        slower = f"; plain PyTorch in place of Triton's kernels, slower: {lacking}"
    return f"{world} x {name}{visible}{slower}"


def check(recipe: Recipe, config: "shape.Config | None") -> list[Problem]:
    """Return why a run cannot, or should not, start on the CPU; of the latter nothing where it has a GPU, where the CPU
    was chosen (``allow_cpu``, ``use_cpu``, ``DS_ACCELERATOR=cpu``), and for models that are small or not known yet
    (None)."""
    reason = why_cpu(recipe)
    if recipe.trains and recipe.trainer.fp16 and reason is not None:
        wrong = "neither DeepSpeed nor transformers trains in fp16 on a CPU"
        return [Problem("fp16", True, wrong, "give --no_fp16 --bf16")]
    if recipe.memory.allow_cpu or reason != NO_GPU:
        return []
    remedy = "see `nvidia-smi`, and that python -c 'import torch; print(torch.cuda.is_available())' says True; or"
    asked = stopping.launcher_option("--num_gpus")
    if asked is not None:
        wrong = f"{NO_GPU}: everything would be computed on the CPU"
        return [
            Problem("--num_gpus", asked, wrong, f"{remedy} --num_accelerators {asked} --allow_cpu")
        ]
    if config is None or not recipe.trains:
        return []
    try:
        count = shape.total(shape.tensors(shape.sizes(config), shape.TrainedShape()))
    except (RuntimeError, TypeError) as error:
        # torch's words for a tensor of more numbers than it can count
        wrong = (
            f"{NO_GPU}, and the model's parameters cannot be counted ({str(error).splitlines()[0]})"
        )
        return [Problem("device", "cpu", wrong, "make the model smaller")]
    if count <= LARGEST:
        return []
    wrong = f"{NO_GPU}, and a model of {count / 1e9:,.1f} B parameters would be trained on the CPU"
    return [
        Problem(
            "device",
            "cpu",
            wrong,
            f"{remedy} --allow_cpu; tape-ds plan plans for GPUs that are elsewhere",
        )
    ]
