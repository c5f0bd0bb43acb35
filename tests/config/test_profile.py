"""Which steps and ranks can be recorded."""

from types import SimpleNamespace

import pytest

from tape_ds.config.sections import Profile
from tape_ds.config.trainer import Trainer
from tape_ds.fields import run_rules


def problems(max_steps=10, world_size=2, **fields):
    recipe = SimpleNamespace(trainer=Trainer(max_steps=max_steps), world_size=world_size)
    given = {"profile": True} | fields
    wrong = Profile.check(given) or run_rules(Profile(**given), set(), recipe)
    return {problem.field for problem in wrong}


@pytest.mark.parametrize(
    "fields, wrong",
    [
        ({}, set()),
        ({"profile_start": 10}, {"profile_start"}),
        ({"profile_start": 1, "profile_steps": 10}, set()),
        ({"profile_start": 1, "profile_steps": 11}, {"profile_start"}),
        ({"profile_start": 100, "max_steps": -1}, set()),
        ({"profile_ranks": [0, 1]}, set()),
        ({"profile_ranks": [0, 2]}, {"profile_ranks"}),
        ({"profile_ranks": []}, {"profile_ranks"}),
        ({"profile": False, "profile_ranks": [9], "profile_start": 100}, set()),
    ],
)
def test_the_window_and_the_ranks(fields, wrong):
    """The steps of a run of epochs are not known yet; off, nothing is refused."""
    assert problems(**fields) == wrong
