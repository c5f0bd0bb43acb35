"""Whether an arithmetic recipe asks for problems that there are, of lengths that its model can read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tape_ds.data.arithmetic.tasks import TASKS
from tape_ds.errors import Problem, did_you_mean
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.arithmetic import ArithmeticRecipe

CHECKS = Checks()
LONGEST = 200
"""Of an operand."""


@CHECKS.reads("task", "max_digits", "max_digits_second")
def _task(recipe: "ArithmeticRecipe") -> Iterator[Problem]:
    data = recipe.data
    if data.task not in TASKS:
        yield Problem("task", data.task, "no such task", did_you_mean(data.task, TASKS))
    largest = TASKS[data.task].largest if data.task in TASKS else (None, None)
    sizes = (data.max_digits, data.max_digits_second)
    for name, size, limit in zip(("max_digits", "max_digits_second"), sizes, largest, strict=True):
        if name == "max_digits_second" and name not in recipe.given and size == data.max_digits < (limit or LONGEST):
            continue
        if not 1 <= size <= (limit or LONGEST):
            yield Problem(name, size, "out of range", f"give 1 to {limit or LONGEST}")


@CHECKS.reads("task", "max_digits", "max_digits_second", "test_digits", "window", "held_out_samples")
def _lengths(recipe: "ArithmeticRecipe") -> Iterator[Problem]:
    from tape_ds.training.recipe.arithmetic import longest_row

    data = recipe.data
    longest = longest_row(data.task, data.max_digits, data.max_digits_second)
    if data.window < longest and "window" in recipe.given:
        wrong = f"the longest training row has {longest} tokens"
        yield Problem("window", data.window, wrong, f"give {longest} or more, or leave it out")
    trained = max(data.max_digits, data.max_digits_second)
    if data.test_digits < trained and "test_digits" in recipe.given:
        yield Problem("test_digits", data.test_digits, "shorter than what is trained", f"give {trained} or more")
    if data.held_out_samples < 0:
        yield Problem("held_out_samples", data.held_out_samples, "negative", "give 0 to score nothing, or more")


@CHECKS.reads("max_steps", "num_train_epochs")
def _steps(recipe: "ArithmeticRecipe") -> Iterator[Problem]:
    """Epochs of rows that are drawn without end would be no steps at all."""
    epochs = recipe.training_kwargs.get("num_train_epochs") or 0
    if epochs > 0 and recipe.trainer_value("max_steps") <= 0:
        yield Problem("num_train_epochs", epochs, "problems are drawn, and have no end", "give max_steps in its place")
