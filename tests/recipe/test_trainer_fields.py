"""Our tables of the trainer's fields against the installed transformers, and the launchers' own fields beside them."""

import pytest

from tape_ds import fields
from tape_ds.recipe import library_fields, loading, trainer
from tape_ds.recipe.kinds import KINDS
from tools.library_fields import collect

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def test_the_file_is_that_of_the_installed_libraries():
    assert library_fields.read() == collect(), "run python tools/library_fields.py"


@EVERY_KIND
def test_former_and_owned_names_are_what_they_claim(kind):
    today = set(loading.field_hints(kind))
    assert not (set(trainer.REMOVED) | set(kind.FORMER)) & today
    assert set(trainer.OWNED) | set(trainer.DEFAULTS) <= today


@EVERY_KIND
def test_no_field_of_ours_hides_one_of_the_trainer(kind):
    ours = [name for section in kind.SECTIONS.values() for name in section.flat_fields()]
    shared = {"global_batch_size", "base", "launcher", "recipe"}
    assert not (set(ours) | shared) & set(trainer.FIELDS) and len(set(ours)) == len(ours)
    assert set(loading.required(kind)) <= set(kind.STAND_INS) <= set(ours)


def test_every_field_of_the_trainer_takes_its_own_default():
    """But for -1 and 0, which stand for "not given"."""
    defaults = {name: trainer.library_default(name) for name in trainer.FIELDS}
    assert fields.check(trainer.Trainer, defaults) == []
