"""What a base model cannot do: the features of a recipe that transformers' own classes lack, in tables."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tape_ds import attention
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.config.scale import check_model
from tape_ds.distributed.layout import SEQUENCE
from tape_ds.errors import Problem
from tape_ds.models import decoder_configuration
from tape_ds.targets.base import BaseModel

R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class Feature(Generic[R]):
    """A feature that a recipe may ask for, and that the class of a base may not have."""

    field: str
    asked: Callable[[R], object]
    """Returns the field's value where it asks for the feature, else something false."""
    wrong: str
    remedy: str
    has: Callable[[BaseModel], bool] = lambda base: False
    """Whether a class of transformers has it all the same."""


FEATURES: Sequence[Feature[Recipe]] = (
    Feature(
        "liger",
        lambda recipe: recipe.model.liger == "on" and "on",
        "Liger's kernels do not support a {family}",
        "liger: auto",
    ),
    Feature(
        "mlp_tiles",
        lambda recipe: recipe.memory.mlp_tiles > 1 and recipe.memory.mlp_tiles,
        "the feed-forward of a {family} cannot be tiled",
        "leave it out",
    ),
    Feature(
        "activation_checkpointing",
        lambda recipe: recipe.trainer_value("activation_checkpointing") and True,
        "the layers of a {family} cannot be recomputed",
        "give false",
        lambda base: decoder_configuration.recomputes(base.config),
    ),
    Feature(
        SEQUENCE,
        lambda recipe: recipe.scale.sequence_parallel_size > 1 and recipe.scale.sequence_parallel_size,
        "the sequences of a {family} cannot be shared between processes",
        "leave it out, and use zero3",
    ),
)
OF_EXTENSIONS: Sequence[Feature[ExtensionRecipe]] = (
    Feature(
        "position_options",
        lambda recipe: recipe.model.position_options,
        "a {model_type} has none",
        "position_options: {}",
    ),
    Feature(
        "state_dtype",
        lambda recipe: recipe.model.state_dtype,
        "a {model_type} has no position state",
        "remove it (where a base has it: state_dtype: null)",
    ),
    Feature(
        "train_router",
        lambda recipe: recipe.method.train_router,
        "a {family} has no router",
        "remove it",
        lambda base: base.shape.has_router,
    ),
    Feature(
        "method",
        lambda recipe: recipe.method.chosen.grouped and recipe.method.method,
        "a {family} does not attend in groups",
        "method: lora",
    ),
    Feature(
        "distill",
        lambda recipe: recipe.method.distill,
        "a {family} changes what its head gives, and the divergence is of heads",
        "leave it out",
        lambda base: not decoder_configuration.changes_logits(base.config),
    ),
)


def lacking(recipe: R, base: BaseModel, features: Sequence[Feature[R]]) -> Iterator[Problem]:
    """Yield the features that a recipe asks for and the class of its base does not have."""
    if not base.is_foreign:
        return
    for feature in features:
        value = feature.asked(recipe)
        if value and not feature.has(base):
            wrong = feature.wrong.format(family=base.family, model_type=base.config.model_type)
            yield Problem(feature.field, value, wrong, feature.remedy)


def check_base(recipe: Recipe, base: BaseModel) -> Iterator[Problem]:
    """Yield what a base cannot do, whatever the kind of recipe."""
    yield from check_model(recipe.scale, base.config)
    yield from lacking(recipe, base, FEATURES)
    if base.is_foreign:
        needs = sorted(decoder_configuration.needs(base.config))
        yield from attention.check_backend(recipe.model.attention_backend, needs)
