"""A learning rate and a weight decay for position parameters: how they are written, and what refuses them."""

import pytest

from tape_ds.cli import train
from tape_ds.config import extension, finetuning, generated, pretraining
from tape_ds.config.sections import Optimization, check_trained
from tape_ds.errors import UserError
from tests.config.helpers import json_file, problems_of, write

FIELDS = {"position_learning_rate", "position_weight_decay"}
FULL = ("--method", "full", "--train_embeddings", "true")


@pytest.mark.parametrize(
    ("given", "rate"),
    [(None, 2e-4), (3e-3, 3e-3), ("3e-3", 3e-3), ("10x", 2e-3), ("0.5x", 1e-4), ("1e1x", 2e-3)],
)
def test_a_rate_is_a_number_or_a_factor(given, rate):
    recipe = extension.load(["--recipe", write(position_learning_rate=given, learning_rate=2e-4)])
    assert recipe.optimization.position_rate(2e-4) == pytest.approx(rate)


@pytest.mark.parametrize("typed", ["null", "1e-3", "10x"])
def test_a_command_line_spells_it_alike(typed):
    recipe = extension.load(["--recipe", write(position_learning_rate=0.5), "--position_learning_rate", typed])
    assert recipe.optimization.position_learning_rate == {"null": None, "1e-3": 1e-3, "10x": "10x"}[typed]


@pytest.mark.parametrize("wrong", ["x", "10 times", "tenx", "truex", "-3x", "0x", 0, -1e-3, "nan", "nanx", True])
def test_what_is_neither_is_refused(wrong):
    found, _ = problems_of("--recipe", write(position_learning_rate=wrong))
    assert set(found) == {"position_learning_rate"}


def test_decay_is_not_negative():
    found, _ = problems_of("--recipe", write(position_weight_decay=-0.1))
    assert set(found) == {"position_weight_decay"}


@pytest.mark.parametrize(
    ("load", "arguments"),
    [
        (pretraining.load, ["--recipe", "tiny", "--position_encoding", "rope"]),
        (pretraining.load, ["--recipe", "tiny_tape_no_updates"]),
        (generated.load, ["--recipe", "addition_tiny", "--position_encoding", "nope"]),
        (extension.load, ["--recipe", "demo", "--method", "lora"]),
        (extension.load, ["--recipe", "demo", *FULL, "--position_encoding", "rope"]),
        (extension.load, ["--recipe", "demo", "--method", "tape", "--train_position", "false"]),
    ],
)
def test_nothing_to_step_is_refused_by_both_names(load, arguments):
    """Where nobody gives them, such a recipe is fine, and its plan names no position parameters."""
    arguments = [*arguments, "--position_options", "{}"] if "--position_encoding" in arguments else arguments
    assert "position parameters" not in train.describe(load(arguments))
    given = ["--position_learning_rate", "10x", "--position_weight_decay", "0.1"]
    found, text = problems_of(*arguments, *given, load=load)
    assert set(found) == FIELDS and "or train an encoding with parameters: tape" in text
    assert load([*arguments, "--position_learning_rate", "null", "--position_weight_decay", "0"])


@pytest.mark.parametrize(
    ("load", "arguments"),
    [
        (pretraining.load, ["--recipe", "tiny"]),
        (pretraining.load, ["--recipe", "tiny", "--position_encoding", "fire"]),
        (generated.load, ["--recipe", "addition_tiny"]),
        (extension.load, ["--recipe", "demo", "--method", "tape"]),
        (extension.load, ["--recipe", "demo", *FULL, "--position_encoding", "tape"]),
    ],
)
def test_every_launcher_takes_them_and_its_plan_says_them(load, arguments):
    given = ["--learning_rate", "2e-4", "--position_learning_rate", "10x"]
    shown = train.describe(load([*arguments, *given]))
    assert "learning rate 0.0002" in shown
    assert "; position parameters: learning rate 0.002 (10x), weight decay 0" in shown


def test_a_model_of_which_only_its_files_tell_is_asked_later():
    """Fine-tuning takes any model, with its own encoding; the dry run asks it where it is known."""
    recipe = finetuning.load(["--recipe", "scrolls_tiny", "--position_learning_rate", "10x"])
    with pytest.raises(UserError, match="position_learning_rate"):
        train.describe(recipe)
    given = Optimization(position_learning_rate=1e-3)
    assert [problem.field for problem in check_trained(given, trained=False)] == ["position_learning_rate"]
    assert list(check_trained(given, trained=True)) == list(check_trained(Optimization(), trained=False)) == []


@pytest.mark.parametrize("optim", ["galore_adamw", "apollo_adamw", "lomo", "adalomo"])
def test_optimizers_with_groups_of_their_own_are_refused(optim):
    for name, value in (("position_learning_rate", "10x"), ("position_weight_decay", 0.1)):
        found, _ = problems_of("--recipe", write(**{name: value}, optim=optim))
        assert set(found) == {name} and optim in found[name].wrong


def test_a_schedule_of_the_engine_is_refused():
    """DeepSpeed's schedulers give every group one rate."""
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}}
    fields = {"deepspeed": json_file(scheduler=scheduler), "lr_scheduler_type": "constant_with_warmup"}
    found, _ = problems_of("--recipe", write(position_learning_rate="10x", **fields))
    assert set(found) == {"position_learning_rate"}
    assert extension.load(["--recipe", write(**fields)])
