"""The kinds of recipes, by the launcher that each is for."""

from tape_ds.config import files
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.finetuning import ChatRecipe, ScrollsRecipe
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.pretraining import PretrainingRecipe
from tape_ds.config.recipe import Recipe

KINDS: dict[str, type[Recipe]] = {
    kind.LAUNCHER: kind
    for kind in (ExtensionRecipe, PretrainingRecipe, ChatRecipe, ScrollsRecipe, GeneratedRecipe)
}
RENAMED = {"stream_lanes": "stream_workers"}
"""Old names of fields in stored results and checkpoints."""


def of(name: str, otherwise: type[Recipe]) -> type[Recipe]:
    """Return the kind that the recipe ``name`` declares; ``otherwise`` without a declaration or a recipe."""
    declared = files.read_recipe(name, otherwise.LAUNCHER, []).get("launcher")
    return KINDS.get(str(declared.value) if declared is not None else "", otherwise)


def taken(launcher: str, name: str) -> type[Recipe]:
    """Return the kind by which a launcher reads the recipe ``name``; ``finetune`` reads SCROLLS recipes as well."""
    own = KINDS[launcher]
    if own is ChatRecipe and of(name, own) is ScrollsRecipe:
        return ScrollsRecipe
    return own
