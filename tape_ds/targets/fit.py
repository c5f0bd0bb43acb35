"""Features that transformers' own classes lack, in one table: why a base does not fit a recipe."""

from collections.abc import Iterator, Mapping

from tape_ds import attention
from tape_ds.config.recipe import Recipe
from tape_ds.config.scale import check_model
from tape_ds.distributed.layout import SEQUENCE
from tape_ds.errors import Problem
from tape_ds.models import decoder_configuration
from tape_ds.targets.base import BaseModel

LACKING: Mapping[str, tuple[str, str]] = {
    "liger": ("Liger's kernels do not support a {family}", "liger: auto"),
    "mlp_tiles": ("the feed-forward of a {family} cannot be tiled", "leave it out"),
    "activation_checkpointing": ("the layers of a {family} cannot be recomputed", "give false"),
    SEQUENCE: (
        "the sequences of a {family} cannot be shared between processes",
        "leave it out, and use zero3",
    ),
    "position_options": ("a {model_type} has none", "position_options: {}"),
    "state_dtype": (
        "a {model_type} has no position state",
        "remove it (where a base has it: state_dtype: null)",
    ),
    "torch_compile": (
        "a {family} carries a state, and a compiled graph cannot split rows at documents' borders",
        "torch_compile: false",
    ),
    "train_router": ("a {family} has no router", "remove it"),
    "method": ("a {family} does not attend in groups", "method: lora"),
    "distill": (
        "a {family} changes what its head gives, and the divergence is of heads",
        "leave it out",
    ),
}
"""Field of a recipe that asks for more than a class of transformers has -> what is wrong, and the remedy."""


def lacking(base: BaseModel, asked: Mapping[str, object]) -> Iterator[Problem]:
    """Yield a problem for each field of :data:`LACKING` with a value that asks for something; a false one does not."""
    for field, value in asked.items():
        if value:
            wrong, remedy = LACKING[field]
            wrong = wrong.format(family=base.family, model_type=base.config.model_type)
            yield Problem(field, value, wrong, remedy)


def check_base(recipe: Recipe, base: BaseModel) -> Iterator[Problem]:
    """Yield what a base cannot do, whatever the kind of recipe."""
    yield from check_model(recipe.scale, base.config)
    if not base.is_foreign:
        return
    recomputes = recipe.trainer.recomputes
    asked = {
        "liger": recipe.model.liger == "on" and "on",
        "mlp_tiles": recipe.memory.mlp_tiles > 1 and recipe.memory.mlp_tiles,
        "activation_checkpointing": recomputes
        and not decoder_configuration.recomputes(base.config),
        SEQUENCE: recipe.scale.sequence_parallel_size > 1 and recipe.scale.sequence_parallel_size,
        "torch_compile": recipe.trainer.torch_compile
        and decoder_configuration.carries_state(base.config),
    }
    yield from lacking(base, asked)
    needs = sorted(decoder_configuration.needs(base.config))
    yield from attention.check_backend(recipe.model.attention_backend, needs)
