"""Tasks generated from a seed with an exact split of training and test: arithmetic, and addressing by content.

This file has the tasks by name, and the options that a recipe gives one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tape_ds.data.generated.addressing import (
    AddressingTask,
    FlipFlop,
    LookAhead,
    LookBack,
    Recall,
    SelectiveCopy,
)
from tape_ds.data.generated.arithmetic import ARITHMETIC
from tape_ds.data.generated.task import Task
from tape_ds.errors import Problem, did_you_mean, raise_if_any

# each with its default options
TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (*ARITHMETIC, LookBack(), LookAhead(), FlipFlop(), SelectiveCopy(), Recall())
}


def make(name: str, options: Mapping[str, Any]) -> Task:
    """Return a task with its options."""
    raise_if_any(check(name, options))
    task = TASKS[name]
    if isinstance(task, AddressingTask):
        return replace(task, **options)
    return task


def check(name: str, options: Mapping[str, Any]) -> list[Problem]:
    problems = []
    task = TASKS[name]
    values = task.options
    for option, value in options.items():
        field = f"task_options.{option}"
        kind = type(values.get(option))
        if option not in values:
            problems.append(
                Problem(field, value, f"not an option of {name}", did_you_mean(str(option), values))
            )
        elif not (type(value) is kind or (kind is float and type(value) is int)):
            # True is no int
            problems.append(
                Problem(
                    field, value, "wrong type", f"give a {'whole ' if kind is int else ''}number"
                )
            )
    if problems:
        return problems
    values |= options
    for option, (least, largest) in task.bounds.items():
        most = values[largest] if isinstance(largest, str) else largest
        if not least <= values[option] <= most:
            remedy = f"give {least} to {most}"
            problems.append(
                Problem(f"task_options.{option}", values[option], "out of range", remedy)
            )
    return problems
