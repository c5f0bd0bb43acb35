"""The tasks by name, and the options that a recipe gives one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tape_ds.data.generated.addressing import AddressingTask
from tape_ds.data.generated.arithmetic import ARITHMETIC
from tape_ds.data.generated.memory import FlipFlop, Recall, SelectiveCopy
from tape_ds.data.generated.pointing import LookAhead, LookBack
from tape_ds.data.generated.task import Task
from tape_ds.errors import Problem, did_you_mean, raise_if_any

TASKS: Mapping[str, Task] = {
    task.name: task for task in (*ARITHMETIC, LookBack(), LookAhead(), FlipFlop(), SelectiveCopy(), Recall())
}
"""Each with its default options."""


def make(name: str, options: Mapping[str, Any]) -> Task:
    """Return a task with its options.

    Raises:
        KeyError: there is no such task.
        UserError: options that it does not have, or values that they cannot have.
    """
    raise_if_any(check(name, options))
    return _with(name, options)


def check(name: str, options: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the options of an existing task."""
    found, defaults = [], TASKS[name].options
    for option, value in options.items():
        field, kind = f"task_options.{option}", type(defaults.get(option))
        if option not in defaults:
            found.append(Problem(field, value, f"not an option of {name}", did_you_mean(str(option), defaults)))
        elif not (type(value) is kind or (kind is float and type(value) is int)):  # True is no int
            found.append(Problem(field, value, "wrong type", f"give a {'whole ' if kind is int else ''}number"))
    if found:
        return found
    task = _with(name, options)
    return [
        Problem(f"task_options.{option}", value, "out of range", f"give {least:,} to {most:,}")
        for option, (least, most) in task.bounds().items()
        if not least <= (value := task.options[option]) <= most
    ]


def _with(name: str, options: Mapping[str, Any]) -> Task:
    task = TASKS[name]
    return replace(task, **options) if isinstance(task, AddressingTask) else task
