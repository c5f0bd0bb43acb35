"""A learning rate and a weight decay for position parameters: how they are written, and which recipes take them."""

import pytest

from tape_ds.config.sections import Optimization, check_trained
from tape_ds.errors import UserError
from tape_ds.training import dry_run
from tests.config import loads
from tests.config.helpers import write


@pytest.mark.parametrize(
    ("given", "rate"),
    [(None, 2e-4), (3e-3, 3e-3), ("3e-3", 3e-3), ("10x", 2e-3), ("0.5x", 1e-4), ("1e1x", 2e-3)],
)
def test_a_rate_is_a_number_or_a_factor(given, rate):
    recipe = loads.extension(["--recipe", write(position_learning_rate=given, learning_rate=2e-4)])
    assert recipe.optimization.position_rate(2e-4) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("load", "arguments"),
    [
        (loads.pretraining, ["--recipe", "tiny", "--position_encoding", "rope"]),
        (loads.pretraining, ["--recipe", "tiny_tape_no_updates"]),
        (loads.extension, ["--recipe", "demo", "--method", "tape", "--train_position", "false"]),
    ],
)
def test_a_recipe_without_position_parameters_may_leave_both_open(load, arguments):
    """What is refused is frozen; a recipe that gives neither is fine."""
    arguments = (
        [*arguments, "--position_options", "{}"]
        if "--position_encoding" in arguments
        else arguments
    )
    assert load([*arguments, "--position_learning_rate", "null", "--position_weight_decay", "0"])


def test_a_model_of_which_only_its_files_tell_is_asked_later():
    """Fine-tuning takes any model, with its own encoding; the dry run asks it where it is known."""
    recipe = loads.scrolls(["--recipe", "scrolls_tiny", "--position_learning_rate", "10x"])
    with pytest.raises(UserError, match="position_learning_rate"):
        dry_run.describe(recipe)
    given = Optimization(position_learning_rate=1e-3)
    assert [problem.field for problem in check_trained(given, trained=False)] == [
        "position_learning_rate"
    ]
    assert (
        list(check_trained(given, trained=True))
        == list(check_trained(Optimization(), trained=False))
        == []
    )
