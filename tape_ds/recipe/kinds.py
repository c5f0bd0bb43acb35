"""The kinds of recipes, by the launcher that each is for."""

from tape_ds.recipe.arithmetic import ArithmeticRecipe
from tape_ds.recipe.extension import ExtensionRecipe
from tape_ds.recipe.finetuning import FinetuningRecipe
from tape_ds.recipe.pretraining import PretrainingRecipe
from tape_ds.recipe.recipe import Recipe

KINDS: dict[str, type[Recipe]] = {
    kind.LAUNCHER: kind for kind in (ExtensionRecipe, PretrainingRecipe, FinetuningRecipe, ArithmeticRecipe)
}
