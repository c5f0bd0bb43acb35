"""Checks of values that only a library understands: a schedule, an optimizer and a checkpoint are built with them for
one parameter, before any data is read; in the dry run too.
"""

import inspect
import math
from argparse import Namespace
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from torch import _inductor
from torch.utils.checkpoint import checkpoint
from transformers import Trainer, get_scheduler
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames
from transformers.utils import (
    is_torch_bf16_gpu_available,
    is_torch_cuda_available,
    is_torch_tf32_available,
)

from tape_ds.config import deepspeed_config, trainer
from tape_ds.config.recipe import Recipe
from tape_ds.errors import Problem, did_you_mean
from tape_ds.kernels import jit
from tape_ds.training import compiled_ops

UNKNOWN = 10**9
"""Steps of a run over epochs of data that are not counted yet: more than any warm-up or decay."""
LOOKED_AT = 1000
"""Steps of a schedule whose rates are checked, as well as the borders of its phases."""
_NEED_THE_MODEL = ("galore", "apollo", "lomo", "adalomo")


def check(recipe: Recipe) -> list[Problem]:
    """Check everything that is known before the data are read."""
    if not recipe.trains:
        return []
    found = []
    name = recipe.trainer.optim
    given = recipe.trainer.optim_args
    if not name.startswith(_NEED_THE_MODEL) and "optimizer" not in (recipe.deepspeed or {}):
        try:
            kind, settings = _optimizer_of(recipe, given)
            kind([torch.nn.Parameter(torch.zeros(2, 2))], **settings)
        except Exception as error:  # as of a schedule
            lacking = isinstance(error, ImportError) or "install" in str(error)
            if not (lacking and recipe.elsewhere):
                field, value = ("optim_args", given) if given and not lacking else ("optim", name)
                remedy = "write name=value, name=value, or remove it"
                if field == "optim":
                    remedy = "choose another optim"
                found.append(Problem(field, value, f"{name} cannot be made: {error}", remedy))
        else:
            each = given.split(",") if given else []
            # transformers passes over what it does not know
            for index, argument in enumerate(each):
                others = ",".join(each[:index] + each[index + 1 :])
                if _optimizer_of(recipe, others) == (kind, settings):
                    found.append(
                        Problem("optim_args", argument, f"changes nothing of {name}", "remove it")
                    )

    backend = recipe.trainer.torch_compile_backend
    mode = recipe.trainer.torch_compile_mode
    if backend is not None and backend.upper() not in DynamoBackend.__members__:
        remedy = did_you_mean(backend, [each.lower() for each in DynamoBackend.__members__])
        found.append(Problem("torch_compile_backend", backend, "unknown", remedy))
    if mode is not None and mode not in (known := _inductor.list_mode_options()):
        found.append(Problem("torch_compile_mode", mode, "unknown", did_you_mean(mode, known)))
    if recipe.trainer.torch_compile and deepspeed_config.stage(recipe.deepspeed) == 3:
        wrong = "with ZeRO-3, which gathers parameters while a block computes"
        found.append(
            Problem("torch_compile", True, wrong, "use deepspeed: zero1 or zero2; or remove it")
        )
    options = recipe.trainer.activation_checkpointing_kwargs
    if options and recipe.trainer.recomputes:
        try:
            checkpoint(
                torch.nn.Identity(),
                torch.zeros(1, requires_grad=True),
                **{"use_reentrant": False} | options,
            )
        except Exception as error:  # as of a schedule
            remedy = "see torch.utils.checkpoint.checkpoint"
            found.append(Problem("activation_checkpointing_kwargs", options, str(error), remedy))

    # a plan for another machine knows nothing of its GPUs
    if not recipe.elsewhere:
        on_gpu = recipe.chosen_cpu is None and is_torch_cuda_available()
        if recipe.trainer.tf32 and not is_torch_tf32_available():
            found.append(
                Problem(
                    "tf32", True, "there is no GPU here that has it (Ampere or newer)", "remove it"
                )
            )
        if recipe.trainer.torch_compile and on_gpu and (reason := jit.no_compiler()) is not None:
            found.append(
                Problem("torch_compile", True, reason, "install it, or remove torch_compile")
            )
        if recipe.trainer.bf16 and on_gpu and not is_torch_bf16_gpu_available():
            wrong = "the GPU here does not have it (Ampere or newer)"
            found.append(Problem("bf16", True, wrong, "give fp16: true instead"))
        found += compiled_ops.check(recipe.deepspeed)
    steps = recipe.trainer.max_steps
    return found + check_schedule(recipe, steps if steps > 0 else UNKNOWN)


def warmup_steps(asked: float, steps: int) -> int:
    """Return the warm-up among ``steps`` (at least 1). A share (below 1) is rounded up, but leaves the last step its
    full rate: a run of one step, whose only rate would be 0, has no warm-up."""
    if asked >= 1:
        return int(asked)
    return min(math.ceil(asked * steps), steps - 1)


def check_schedule(recipe: Recipe, steps: int) -> list[Problem]:
    """Check that the schedule of a run of ``steps`` steps can be built, and gives rates from 0 to learning_rate."""
    if "scheduler" in (recipe.deepspeed or {}):
        return []
    name = recipe.trainer.lr_scheduler_type
    given = recipe.trainer.lr_scheduler_kwargs or {}
    warmup = warmup_steps(recipe.trainer.warmup_steps, steps)
    parameters = inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(name)]).parameters
    takes = parameters.keys() - {
        "optimizer",
        "num_warmup_steps",
        "num_training_steps",
        "last_epoch",
    }
    found = []
    # some schedules ignore what they do not take
    for each in given.keys() - takes:
        remedy = did_you_mean(each, takes) if takes else "remove it"
        found.append(
            Problem(f"lr_scheduler_kwargs.{each}", given[each], f"no argument of {name}", remedy)
        )
    decay = given.get("num_decay_steps")
    if isinstance(decay, int) and "num_stable_steps" not in given and warmup + decay > steps:
        wrong = f"with a warm-up of {warmup:,} it is longer than the run: max_steps = {steps:,}"
        found.append(
            Problem(
                "lr_scheduler_kwargs.num_decay_steps", decay, wrong, "give fewer, or more max_steps"
            )
        )
    if found:
        return found
    try:
        optimizer = torch.optim.SGD(
            [torch.nn.Parameter(torch.zeros(1))], lr=recipe.trainer.learning_rate
        )
        schedule: Any = get_scheduler(name, optimizer, warmup, steps, given)
        spread = range(0, steps, -(-steps // LOOKED_AT))
        looked_at = sorted({*spread, 1, warmup - 1, warmup, warmup + 1, steps - 1, steps})
        factors = {step: schedule.lr_lambdas[0](step) for step in looked_at if 0 <= step <= steps}
        outside = {
            step: each
            for step, each in factors.items()
            if isinstance(each, complex) or not -1e-9 <= each <= 1 + 1e-9
        }
        wrong = ""
        if outside:
            step, factor = next(iter(outside.items()))
            wrong = f"at step {step:,} the rate would be {factor:.3g} x learning_rate"
        elif not any(list(factors.values())[:-1]):  # the last is of the step after the last
            wrong = "the rate is 0 at every step"
    except ZeroDivisionError:
        wrong = "no step is left to decay in"
    except Exception as error:
        # a schedule is a library's own function, and raises whatever it meets
        wrong = str(error)
    where = "over epochs"
    if steps < UNKNOWN:
        where = f"over {steps:,} steps, {warmup:,} of them warm-up"
    where += f", with {given}" if given else ""
    remedy = "change warmup_steps, max_steps, lr_scheduler_type or lr_scheduler_kwargs"
    if wrong:
        return [Problem("lr_scheduler_type", name, f"{where}: {wrong}", remedy)]
    return []


def _optimizer_of(recipe: Recipe, given: str | None) -> tuple[Any, dict[str, Any]]:
    arguments: Any = Namespace(**{field: recipe.trainer.value(field) for field in trainer.FIELDS})
    arguments.optim = OptimizerNames(recipe.trainer.optim)
    arguments.optim_args = given
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(arguments)
    return kind, dict(settings)
