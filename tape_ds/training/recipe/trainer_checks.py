"""Whether the trainer's half of a recipe agrees with itself, with the machine and with the DeepSpeed JSON.

For every kind of run: batch and processes, duration, precision, checkpointing, trackers, folders.
"""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tape_ds.errors import Problem, did_you_mean
from tape_ds.parallel.layout import SEQUENCE, TENSOR, Layout
from tape_ds.training import checkpoint
from tape_ds.training.recipe import deepspeed_config, paths, trainer_fields
from tape_ds.training.recipe.checks import Checks
from tape_ds.training.recipe.scale import check_groups

if TYPE_CHECKING:
    from tape_ds.training.recipe.recipe import Recipe

CHECKS = Checks()


@CHECKS.reads(
    *("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps", "sequence_parallel_size")
)
def _batch(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.trains and not list(check_groups(recipe.scale, recipe.world_size)):  # :mod:`.scale` says what is wrong
        yield from check_batch(recipe, recipe.layout())


def check_batch(recipe: "Recipe", layout: Layout) -> Iterator[Problem]:
    """Whether the global batch can be shared out over the processes, or groups of them that share rows."""
    batch, each = recipe.global_batch_size, recipe.training_kwargs["per_device_train_batch_size"]
    if batch < 1:
        yield Problem("global_batch_size", batch, "too small", "give 1 or more")
        return
    shared = each * layout.data
    if batch % shared:
        wrong = f"not divisible by {each} (per_device_train_batch_size) x {layout.data} ({layout.readers}) = {shared}"
        fitting = [size for size in range(min(each, 1024), 0, -1) if batch % (size * layout.data) == 0]
        nearest = max(batch // shared, 1) * shared
        other = f"per_device_train_batch_size: {fitting[0]}, or " if fitting else ""
        yield Problem("global_batch_size", batch, wrong, f"{other}global_batch_size: {nearest}, or other processes")
        return
    written = recipe.written_accumulation
    if written is not None and written != batch // shared:
        wrong = f"{batch} / ({each} x {layout.data} {layout.readers}) makes {batch // shared}"
        yield Problem("gradient_accumulation_steps", written, wrong, "remove it: it follows from global_batch_size")


@CHECKS.reads("max_steps", "num_train_epochs", "warmup_steps")
def _duration(recipe: "Recipe") -> Iterator[Problem]:
    if not recipe.trains:
        return
    steps = recipe.training_kwargs.get("max_steps") or 0
    epochs = recipe.training_kwargs.get("num_train_epochs")
    if steps > 0 and epochs is not None and epochs > 0:
        wrong = f"max_steps = {steps} decides, this would be ignored"
        yield Problem("num_train_epochs", epochs, wrong, "remove one of the two (--max_steps -1 takes a recipe's back)")
    if steps <= 0 and (epochs is None or epochs <= 0):
        remedy = "give max_steps or num_train_epochs"
        yield Problem("max_steps", steps, "nothing says how long to train", remedy)
    warmup = recipe.training_kwargs.get("warmup_steps", 0)
    if 0 < steps < warmup:
        wrong = f"longer than the run, max_steps = {steps}"
        yield Problem("warmup_steps", warmup, wrong, "give fewer, or a share of the run (below 1)")


@CHECKS.reads("save_strategy")
def _saving(recipe: "Recipe") -> Iterator[Problem]:
    """The trainer sees a run as one epoch, and never evaluates within it."""
    strategy = recipe.training_kwargs.get("save_strategy", "steps")
    if strategy not in ("steps", "no"):
        wrong = "a run is one pass over its samples, with no evaluation in between"
        yield Problem("save_strategy", str(strategy), wrong, "give steps (and save_steps), or no")


@CHECKS.reads("bf16", "fp16")
def _precision(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.training_kwargs.get("bf16") and recipe.training_kwargs.get("fp16"):
        yield Problem("fp16", True, "bf16 is on as well", "keep one of the two")


@CHECKS.reads("activation_checkpointing", "activation_checkpointing_kwargs")
def _checkpointing(recipe: "Recipe") -> Iterator[Problem]:
    given = recipe.training_kwargs.get("activation_checkpointing_kwargs")
    if isinstance(given, Mapping) and given.get("use_reentrant", False) is not False:
        wrong = "reentrant checkpointing cuts the gradients of the position updates"
        yield Problem("activation_checkpointing_kwargs.use_reentrant", given["use_reentrant"], wrong, "give false")


@CHECKS.reads("accelerator_config")
def _accelerator(recipe: "Recipe") -> Iterator[Problem]:
    given = recipe.training_kwargs.get("accelerator_config")
    if not isinstance(given, Mapping):
        return
    for name in ("split_batches", "dispatch_batches"):
        if given.get(name):
            wrong = "each process reads its own samples, chosen by their number"
            yield Problem(f"accelerator_config.{name}", True, wrong, "remove it")


@CHECKS.reads("report_to")
def _trackers(recipe: "Recipe") -> Iterator[Problem]:
    from transformers.integrations import integration_utils

    known = list(integration_utils.INTEGRATION_TO_CALLBACK)
    asked = recipe.training_kwargs["report_to"]
    for name in [asked] if isinstance(asked, str) else asked or []:
        if name not in (*known, "none", "all"):
            yield Problem("report_to", name, "unknown tracker", did_you_mean(name, ["none", *known]))
        elif name in known and name not in integration_utils.get_available_reporting_integrations():
            package = name.replace("_", "-")
            yield Problem(
                "report_to", name, "its package is not installed", f"pip install {package}, or report_to: none"
            )


@CHECKS.reads("output_dir")
def _output(recipe: "Recipe") -> Iterator[Problem]:
    folder = paths.of(recipe.training_kwargs["output_dir"]).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    shown = recipe.training_kwargs["output_dir"]
    if not existing.is_dir():
        yield Problem("output_dir", shown, f"{existing} is a file", "give another folder")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield Problem("output_dir", shown, f"{existing} is not writable", "give another folder, or change its rights")


@CHECKS.reads("resume_from_checkpoint", "output_dir")
def _resume(recipe: "Recipe") -> Iterator[Problem]:
    """A path; true, the newest checkpoint of output_dir; auto, the same if there is one; false for none."""
    given = recipe.training_kwargs.get("resume_from_checkpoint")
    if given in (None, True, False, "auto"):
        return
    path = paths.of(given)
    if not paths.is_dir(path):
        folder = paths.of(recipe.training_kwargs["output_dir"])
        found = [place.name for place in checkpoint.numbered(folder)] if paths.is_dir(folder) else []
        remedy = f"{folder} has {', '.join(found)}" if found else "give a folder checkpoint-N, or auto for the newest"
        yield Problem("resume_from_checkpoint", given, "no such folder", remedy)


@CHECKS.reads(
    *("deepspeed", "bf16", "fp16", "learning_rate", "per_device_train_batch_size", "global_batch_size"),
    *(SEQUENCE, TENSOR),
    *("max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "optim", "lr_scheduler_type"),
)
def _deepspeed(recipe: "Recipe") -> Iterator[Problem]:
    config = recipe.deepspeed
    if config is None:
        return
    kwargs = {name: recipe.trainer_value(name) for name in trainer_fields.hints()}
    batch, each = recipe.global_batch_size, kwargs["per_device_train_batch_size"]
    betas = [kwargs["adam_beta1"], kwargs["adam_beta2"]]
    size = recipe.scale.ways  # the engine counts a row once for every process that reads it
    counted = "global_batch_size" if size == 1 else f"global_batch_size x {recipe.scale.field}"
    expected = {
        "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", each),
        "train_batch_size": (counted, batch * size),
        "gradient_clipping": ("max_grad_norm", kwargs["max_grad_norm"]),
        "bf16.enabled": ("bf16", bool(kwargs["bf16"] or kwargs["bf16_full_eval"])),
        "fp16.enabled": ("fp16", bool(kwargs["fp16"] or kwargs["fp16_full_eval"])),
        "optimizer.params.lr": ("learning_rate", kwargs["learning_rate"]),
        "optimizer.params.betas": ("[adam_beta1, adam_beta2]", betas),
        "optimizer.params.eps": ("adam_epsilon", kwargs["adam_epsilon"]),
        "optimizer.params.weight_decay": ("weight_decay", kwargs["weight_decay"]),
        "scheduler.params.warmup_max_lr": ("learning_rate", kwargs["learning_rate"]),
    }
    if not list(check_groups(recipe.scale, recipe.world_size)) and batch % (each * recipe.layout().data) == 0:
        accumulation = batch // (each * recipe.layout().data)
        expected["gradient_accumulation_steps"] = ("gradient_accumulation_steps (derived)", accumulation)
    yield from deepspeed_config.check_against_trainer(config, expected)
    yield from deepspeed_config.check_scheduler(config, str(kwargs["lr_scheduler_type"]))
    yield from deepspeed_config.check_optimizer(config, str(kwargs["optim"]))
    yield from deepspeed_config.check_itself(config)
