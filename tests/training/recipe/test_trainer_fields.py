"""Our tables of the trainer's fields against the installed transformers, and the launchers' own fields beside them."""

import pytest

from tape_ds.training.recipe import loading, trainer_fields, values
from tape_ds.training.recipe.extension import ExtensionRecipe
from tape_ds.training.recipe.pretraining import PretrainingRecipe

KINDS = pytest.mark.parametrize("kind", [ExtensionRecipe, PretrainingRecipe])


@KINDS
def test_former_and_owned_names_are_what_they_claim(kind):
    today = set(loading.field_hints(kind))
    assert not (set(trainer_fields.REMOVED) | set(kind.FORMER)) & today
    assert set(trainer_fields.OWNED) | set(trainer_fields.RANGES) | set(trainer_fields.DEFAULTS) <= today


@KINDS
def test_no_field_of_ours_hides_one_of_the_trainer(kind):
    ours = [name for section in kind.SECTIONS.values() for name in section.__dataclass_fields__]
    shared = {"global_batch_size", "base", "launcher", "recipe"}
    assert not (set(ours) | shared) & set(trainer_fields.hints()) and len(set(ours)) == len(ours)
    assert set(kind.REQUIRED) == set(kind.STAND_INS) <= set(ours)


def test_every_field_of_the_trainer_takes_its_own_default():
    for name, hint in trainer_fields.hints().items():
        default = trainer_fields.library_default(name)
        plain = getattr(default, "value", default)
        assert values.convert(plain, hint) == default, name
