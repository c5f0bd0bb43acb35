"""The section of every recipe that says how the processes of a job share the work, beside ZeRO: who reads which rows.

ZeRO's shards stay spread over all processes, however rows are shared.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tape_ds.errors import Problem
from tape_ds.parallel.layout import check_heads
from tape_ds.training.recipe import deepspeed_config, trainer_fields
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.extension import ExtensionRecipe
    from tape_ds.training.recipe.pretraining import PretrainingRecipe
    from tape_ds.training.recipe.recipe import Recipe

CHECKS = Checks()
METHOD_CHECKS = Checks()
"""For recipes with methods."""
HEAD_CHECKS = Checks()
"""For recipes that say how many heads a model has."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How processes share the work."""

    sequence_parallel_size: int = 1
    """Neighbouring processes that share the tokens of the same rows (Ulysses): each holds a part of every row, and
    attends with a part of the heads. Divides the processes and the model's query heads; ``global_batch_size`` and
    ``per_device_train_batch_size`` count whole rows, of one such group the latter."""


def check_model(scale: Scale, config: Any) -> list[Problem]:
    """Whether a model, once its configuration is known, can be shared so.

    Args:
        scale: as loaded.
        config: a transformers configuration, or a recipe's section with the same names.
    """
    heads = config.num_attention_heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    return list(check_heads(heads, key_value_heads, scale.sequence_parallel_size))


@CHECKS.reads("sequence_parallel_size")
def _groups(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.scale.sequence_parallel_size > 1 and not recipe.trains:
        wrong = "nothing is trained, and rows are shared in training only"
        yield Problem("sequence_parallel_size", recipe.scale.sequence_parallel_size, wrong, "remove it")
        return
    yield from check_groups(recipe.scale, recipe.world_size)


def check_groups(scale: Scale, world: int) -> Iterator[Problem]:
    """Whether ``world`` processes fall into groups that share rows."""
    size = scale.sequence_parallel_size
    if size < 1:
        yield Problem("sequence_parallel_size", size, "too small", "give 1 (rows are not shared) or more")
    elif world % size:
        fitting = [each for each in range(1, world + 1) if world % each == 0]
        remedy = f"start a multiple of {size} processes, or give one of: {', '.join(map(str, fitting))}"
        yield Problem("sequence_parallel_size", size, f"does not divide the job's processes, {world}", remedy)


_WHOLE_ROWS = {
    "neftune_noise_alpha": "its noise is scaled by the length of the rows that a process holds",
    "torch_compile": "a compiled graph does not hold what processes exchange in a layer",
    "include_num_input_tokens_seen": "it would count a row once for each process that reads it; see the log's tokens",
}
"""Fields of the trainer that take a process's part of a row for the row, and why that is wrong."""


@CHECKS.reads("sequence_parallel_size", "deepspeed", *_WHOLE_ROWS)
def _whole_rows(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.scale.sequence_parallel_size <= 1:
        return
    for name, wrong in _WHOLE_ROWS.items():
        value = recipe.trainer_value(name)
        if value and value != trainer_fields.library_default(name):
            yield Problem(name, value, f"with sequence_parallel_size above 1: {wrong}", "remove one of the two")


@CHECKS.reads("deepspeed")
def _engine(recipe: "Recipe") -> Iterator[Problem]:
    """To the engine every process is one of plain data parallelism, and gradients are averaged over all of them."""
    written = deepspeed_config.lookup(recipe.deepspeed or {}, "sequence_parallel_size")
    if written not in (None, 1):
        wrong = "the trainer shares rows itself, and the engine would average gradients over too few processes"
        remedy = f"remove it from the JSON, and set sequence_parallel_size: {written} in the recipe"
        yield Problem("deepspeed.sequence_parallel_size", written, wrong, remedy)


@HEAD_CHECKS.reads("sequence_parallel_size", "num_attention_heads", "num_key_value_heads")
def _heads(recipe: "PretrainingRecipe") -> Iterator[Problem]:
    model = recipe.model
    if min(model.num_attention_heads, model.num_key_value_heads, recipe.scale.sequence_parallel_size) >= 1:
        yield from check_model(recipe.scale, model)


@METHOD_CHECKS.reads("sequence_parallel_size", "method")
def _whole_heads(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    size = recipe.scale.sequence_parallel_size
    if size > 1 and recipe.chosen.grouped:
        wrong = f"{recipe.method.method} attends within groups, and needs every head in one process"
        yield Problem("sequence_parallel_size", size, wrong, "remove it, or choose a method with full attention: lora")
