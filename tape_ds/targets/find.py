"""Find the model that a recipe trains, for a run, a plan or a look; each reads small files alone."""

from collections.abc import Mapping
from typing import Any

from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.finetuning import ChatRecipe, ScrollsRecipe
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.targets.base import find_base, known_base
from tape_ds.targets.extension import ExtensionTarget
from tape_ds.targets.finetuning import ChatTarget, ScrollsTarget
from tape_ds.targets.new_model import GeneratedTarget, PretrainingTarget
from tape_ds.targets.target import Target

TARGETS: Mapping[type[Recipe], type[Target[Any]]] = {
    ExtensionRecipe: ExtensionTarget,
    PretrainingRecipe: PretrainingTarget,
    ChatRecipe: ChatTarget,
    ScrollsRecipe: ScrollsTarget,
    GeneratedRecipe: GeneratedTarget,
}
"""The kinds of recipes and of the models that they train."""


def find_target(recipe: Recipe) -> Target[Recipe]:
    """Return the model that a run trains. Raises UserError: its base is not there, or cannot do what is asked."""
    base = None
    if recipe.base_name is not None:
        base = find_base(recipe.base_name)
    return TARGETS[type(recipe)].of(recipe, base)


def planned_target(recipe: Recipe, name: str | None = None) -> Target[Recipe]:
    """Return the model that a recipe would train, perhaps on another machine: a published base is not looked for.
    ``name`` (also of a ``config.json``) replaces the recipe's base."""
    name = name or recipe.base_name
    base = None
    if name is not None:
        base = known_base(name, online=False) or find_base(name)
    return TARGETS[type(recipe)].of(recipe, base)


def known_target(recipe: Recipe) -> Target[Recipe] | None:
    """Return the model that a recipe would train, as far as it is known within seconds; None where its base is on the
    hub and not answered for, or its vocabulary is a tokenizer's."""
    kind = TARGETS[type(recipe)]
    base = None
    if recipe.base_name is not None:
        base = known_base(recipe.base_name, online=True)
        if base is None:
            return None
    if not kind.is_known(recipe):
        return None
    return kind.of(recipe, base)
