"""What ``--dry_run`` says."""

import pytest

from tape_ds.training.recipe import plan
from tape_ds.training.recipe.extension import load


def test_the_plan_says_batch_steps_and_engine():
    shown = plan.describe(load([], world_size=2))
    assert "8 rows = 8,192 tokens a step: 1 per device x 2 processes x 4 accumulation" in shown
    assert "smollm2 -> 16,384 positions" in shown and "ZeRO-3, bf16" in shown and "PoSE, 2 chunks" in shown


@pytest.mark.parametrize(
    ("arguments", "trained"),
    [
        (["--method", "full"], "full, training everything"),
        (
            ["--method", "lora", "--position_encoding", "rope", "--train_position", "false"],
            "lora, training adapters, norms",
        ),
        ([], "tape, training position, norms"),
    ],
)
def test_the_plan_says_what_is_trained(arguments, trained):
    assert trained in plan.describe(load(arguments, world_size=1))


def test_a_method_without_steps_asks_for_none():
    """Angles alone are scaled: no batch has to divide by the processes, and nothing says that rows are read."""
    lines = plan.describe(load(["--method", "yarn", "--max_steps", "-1"], world_size=3))
    assert "yarn, training nothing" in lines and "none is read" in lines and "no DeepSpeed" in lines
    assert "tokens a step" not in lines and "steps " not in lines
