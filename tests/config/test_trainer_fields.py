"""Our tables of the trainer's fields against the installed transformers, and the launchers' own fields beside them."""

import dataclasses
import subprocess
import sys
from typing import get_args

import pytest

from tape_ds import fields
from tape_ds.config import library_fields, loading, trainer
from tape_ds.config.kinds import KINDS

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def test_fields_are_those_of_the_installed_transformers():
    """Read without importing it, and the same: names, defaults and what its help says."""
    from transformers import TrainingArguments

    known = {field.name: field for field in dataclasses.fields(TrainingArguments) if field.init}
    found = library_fields.trainer()
    assert {*found, "local_rank"} == set(known)
    for name, (_, default, help) in found.items():
        field = known[name]
        expected = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        assert default == getattr(expected, "value", expected), name
        assert help or "help" not in field.metadata


def test_enums_are_their_values():
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    found = library_fields.trainer()
    assert set(get_args(found["lr_scheduler_type"].type)) == {each.value for each in SchedulerType}
    assert set(get_args(found["optim"].type)) == {each.value for each in OptimizerNames}


def test_trackers_are_those_of_the_installed_transformers():
    from transformers.integrations import integration_utils

    assert library_fields.trackers() == list(integration_utils.INTEGRATION_TO_CALLBACK)


def test_no_library_is_imported():
    script = """
import sys
from tape_ds.config import library_fields
library_fields.trainer(), library_fields.trackers(), library_fields.deepspeed()
assert not {"torch", "transformers", "deepspeed"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


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
