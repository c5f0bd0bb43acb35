"""The trainer's fields against the installed transformers, and the launchers' own fields next to them."""

import dataclasses
import subprocess
import sys
from typing import get_args

import pytest

from tape_ds.config import library, trainer
from tape_ds.config.kinds import KINDS

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def test_fields_are_those_of_the_installed_transformers():
    """Read without importing it, with the same names and defaults."""
    from transformers import TrainingArguments

    known = {field.name: field for field in dataclasses.fields(TrainingArguments) if field.init}
    found = library.training_arguments().model_fields
    assert {*found, "local_rank", "gradient_checkpointing", "gradient_checkpointing_kwargs"} == set(
        known
    )
    for name, own in found.items():
        field = known[name]
        expected = (
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
        )
        assert own.default == getattr(expected, "value", expected), name


def test_what_is_declared_here_has_transformers_default_or_is_stored_with_a_run():
    for name, field in trainer.FIELDS.items():
        assert name in trainer.OURS or field.default == trainer.library_default(name), name


def test_enums_are_their_values():
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    found = trainer.Trainer.model_fields
    assert set(get_args(found["lr_scheduler_type"].annotation)) == {
        each.value for each in SchedulerType
    }
    assert set(get_args(found["optim"].annotation)) == {each.value for each in OptimizerNames}


def test_trackers_are_those_of_the_installed_transformers():
    from transformers.integrations import integration_utils

    assert library.trackers() == list(integration_utils.INTEGRATION_TO_CALLBACK)


def test_no_library_is_imported():
    script = """
import sys
from tape_ds.config import kinds, library
library.trackers()
assert not {"torch", "transformers", "deepspeed"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@EVERY_KIND
def test_no_field_of_ours_hides_one_of_the_trainer(kind):
    ours = [name for section in kind.SECTIONS.values() for name in section.flat_fields()]
    shared = {"global_batch_size", "base", "launcher", "recipe"}
    assert not (set(ours) | shared) & set(trainer.FIELDS) and len(set(ours)) == len(ours)
    required = {name for name, field in kind.fields().items() if field.is_required()}
    assert required <= set(kind.STAND_INS) <= set(ours)
