"""What is compared: arms, each a name and the fields of a recipe that it sets; written on the command line as ``NAME``
or ``NAME{"field": value}``, or in a file, and arguments for every run."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tape_ds import paths
from tape_ds.errors import Problem, UserError
from tape_ds.recipe import files
from tape_ds.recipe.recipe import Recipe

OWN = ("recipe", "output_dir", "resume_from_checkpoint")
"""Fields that a comparison decides for each run."""


@dataclass(frozen=True)
class Arm:
    """One thing that is compared."""

    label: str
    """How tables call it: ``tape form=vector``."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What it sets in the recipe, over what stands behind ``--``; ``recipe`` among them."""

    @property
    def folder(self) -> str:
        """What the names of its runs' folders begin with."""
        return re.sub(r"[^A-Za-z0-9.=+-]+", "_", self.label).strip("_")

    def arguments(self, passed_on: Sequence[str]) -> list[str]:
        """A launcher's command line; its own fields come last, since the last word counts."""
        words = list(passed_on)
        for name, value in self.fields.items():
            words += [f"--{name}", value if isinstance(value, str) else json.dumps(value, default=str)]
        return words


def labelled(name: str, options: Mapping[str, Any]) -> str:
    """The label of ``NAME{"option": value}``."""
    return " ".join([name, *(f"{option}={value}" for option, value in options.items())])


def read(text: str, flag: str) -> tuple[str, dict[str, Any]]:
    """Name and options of ``NAME`` or ``NAME{"option": value}``, given by ``--flag``.

    Raises:
        UserError: what stands in braces is no JSON.
    """
    name, brace, rest = text.partition("{")
    try:
        given = json.loads(brace + rest) if brace else {}
    except json.JSONDecodeError as error:
        remedy = f"""write for example '{name}{{"field": 8}}'"""
        raise UserError(Problem(flag, text, f"its options are no JSON ({error.msg})", remedy)) from None
    return name.strip(), given


def read_file(path: str, own: Collection[str], read_one: Callable[[str, dict[str, Any]], Arm]) -> list[Arm]:
    """The arms of a YAML file, a name and the fields of the recipe that it sets for each::

        rope: {position_encoding: rope}
        slow: {position_encoding: tape, position_options: {rank: 8}, learning_rate: 1.0e-4}

    Args:
        path: of the file.
        own: fields that the command decides.
        read_one: an arm from its name and its fields.

    Raises:
        UserError: everything wrong with the file; what no recipe takes is found when the recipes are loaded.
    """
    if not os.path.isfile(paths.of(path)):
        raise UserError(Problem("arms", path, "no such file", "name a YAML file, NAME: {field: value} in each line"))
    problems: list[Problem] = []
    found: list[Arm] = []
    for name, given in files.read_yaml(paths.of(path), "arms", problems).items():
        if not isinstance(given.value, dict):
            remedy = f"write {name}: {{field: value}}, with fields of the recipe"
            problems.append(Problem("arms", given.value, f"{name} is not a mapping ({given.where})", remedy))
            continue
        strange = [key for key in given.value if not re.fullmatch(r"[A-Za-z]\w*", str(key)) or key in own]
        for key in strange:
            wrong = "decided by this command" if key in own else "not a field's name"
            problems.append(Problem(str(key), given.value[key], f"{name}: {wrong} ({given.where})", "remove it"))
        try:
            found += [] if strange else [read_one(name, given.value)]
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return found


def check_alike(found: Sequence[Arm], flag: str) -> list[Problem]:
    """Arms that a table could not keep apart, or that no folder could be called as."""
    labels = [arm.label for arm in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    return [Problem(flag, label, "named twice", "name it once") for label in twice] + [
        Problem("arms", arm.label, "a name needs a letter or a digit", "give it one") for arm in found if not arm.folder
    ]


def check_passed_on(passed_on: Sequence[str], own: Collection[str]) -> list[Problem]:
    """Arguments for every run among the fields (``own``) that the command decides."""
    given = {name[2:].split("=")[0].split(".")[0].replace("-", "_") for name in passed_on if name.startswith("--")}
    return [
        Problem(name, "behind --", "decided by this command", "remove it from there")
        for name in sorted(given & set(own))
    ]


def unequal(recipes: Mapping[str, Recipe], names: Sequence[str]) -> Iterator[Problem]:
    """Which of the fields ``names``, without which rows of one table would not compare, arms do not share."""
    for name in names:
        values = {label: recipe.as_dict().get(name) for label, recipe in recipes.items()}
        if len({json.dumps(value, default=str) for value in values.values()}) > 1:
            shown = ", ".join(f"{label}: {value}" for label, value in values.items())
            yield Problem(name, shown, "differs between arms that are compared", "give all of them the same")
