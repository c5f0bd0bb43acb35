"""The tasks by their names, and what is wrong with the options that a recipe gives one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

from tape_ds.data.addressing.memory import FlipFlop, Recall, SelectiveCopy
from tape_ds.data.addressing.pointing import LookAhead, LookBack
from tape_ds.data.addressing.task import AddressingTask
from tape_ds.errors import Problem, did_you_mean, raise_if_any

TASKS: Mapping[str, AddressingTask] = {
    task.name: task for task in (LookBack(), LookAhead(), FlipFlop(), SelectiveCopy(), Recall())
}
"""Each with its default options."""


def make(name: str, options: Mapping[str, Any]) -> AddressingTask:
    """Return a task with its options.

    Raises:
        KeyError: there is no such task.
        UserError: options that it does not have, or values that they cannot have.
    """
    raise_if_any(check(name, options))
    return replace(TASKS[name], **options)


def check(name: str, options: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the options of a task that there is."""
    hints = {option: get_type_hints(type(TASKS[name]))[option] for option in vars(TASKS[name])}
    found = []
    for option, value in options.items():
        if option not in hints:
            found.append(Problem(option, value, f"not an option of {name}", did_you_mean(str(option), hints)))
        elif not (type(value) is hints[option] or (hints[option] is float and type(value) is int)):  # True is no int
            found.append(Problem(option, value, "wrong type", f"give {_TYPES[hints[option]]}"))
    found = found or list(replace(TASKS[name], **options).problems())
    return [Problem(f"task_options.{each.field}", each.value, each.wrong, each.remedy) for each in found]


_TYPES = {int: "a whole number", float: "a number"}
