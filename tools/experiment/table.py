"""Read and check an experiment: a YAML file of ``tools/experiments``, or of any path, with arms, seeds and commands.

A file's mapping ``paper`` replaces some of its keys at the scale of a published table (``--scale paper``).
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Any

from pydantic import Field

from tape_ds import paths
from tape_ds.config import files
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.fields import Section
from tape_ds.installation import ROOT
from tools.experiment.statistics import MOST_FLIPPED

FOLDER = ROOT / "tools" / "experiments"
SMALL = "small"
PAPER = "paper"
# a file's own keys, for two CPU cores; those of its ``paper``, for GPUs
SCALES = (SMALL, PAPER)
# fields of a recipe that the runner decides
OWN = ("seed", "output_dir", "resume", "resume_from_checkpoint")


class Experiment(Section):
    """One experiment."""

    about: str
    """One line."""
    label: str = ""
    """The published table or figure that it repeats: ``Table 6``."""
    recipe: str = ""
    """Default of the arms."""
    fields: dict[str, Any] = {}
    """Fields of the recipe, for every run."""
    arms: dict[str, dict[str, Any]] = {}
    """Name -> fields of the recipe, or ``recipe``."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = []
    """Every arm is trained with each; default: the recipe's own."""
    processes: int | None = Field(default=None, ge=1)
    """Of each run; default: every GPU, or 2 on a CPU, divided by the jobs."""
    reference: str = ""
    """Arm that the others are compared with; default: the first."""
    primary: str = ""
    """Figure that decides; default: the first."""
    may_differ: list[str] = []
    """Names of fields that arms otherwise have to share, or ``tokens``."""
    before: list[str] = []
    """Commands before the runs."""
    score: list[str] = []
    """Commands for every trained run."""
    then: list[str] = []
    """Commands after all runs are scored."""
    output: str = ""
    """Folder of the runs; default: ``runs/NAME``."""
    pictures: list[str] = []
    """Patterns of files in it that are part of the result."""
    names: dict[str, str] = {}
    """Arm, or a row of a result -> its row in the published table."""
    setting: str = ""
    """Model and data."""
    remarks: list[str] = []
    """Its limits."""
    needs: str = ""
    """Requirements, such as data."""
    minutes: float | None = None
    """On two CPU cores, all of it."""


def shipped() -> list[str]:
    """Return the names of ``tools/experiments``, sorted by the numbers in them."""
    return sorted(map(attrgetter("stem"), FOLDER.glob("*.yaml")), key=_by_numbers)


def _by_numbers(name: str) -> list[int | str]:
    """Return what sorts ``table10`` after ``table9``: every other part is a number."""
    parts: list[int | str] = re.split(r"(\d+)", name)
    parts[1::2] = map(int, parts[1::2])
    return parts


def read(name: str, scale: str = SMALL) -> Experiment:
    """Return the experiment of a name or of a file."""
    path = FOLDER / f"{re.sub(r'[ .]+', '', name).lower()}.yaml"
    reason = "no such experiment"
    if name.endswith((".yaml", ".yml")):
        path = paths.of(name)
        reason = "no such file"
    if not path.is_file():
        remedy = f"{did_you_mean(name, shipped())}, or the path of a .yaml file"
        raise UserError(Problem("experiment", name, reason, remedy))
    file = files.read_file(path, "experiment")
    raise_if_any(file.problems)
    values = {key: each.value for key, each in file.own.items()}
    at_scale = values.pop(PAPER, None)
    if scale == PAPER:
        if not isinstance(at_scale, dict):
            reason = f"{path.name} has no such form"
            raise UserError(Problem("--scale", scale, reason, "leave it out"))
        values |= at_scale
    problems = Experiment.check(values)
    # what can be read is checked further, so that all mistakes are found at once
    for problem in problems:
        values.pop(problem.field, None)
    experiment = Experiment.build({"about": ""} | values)
    raise_if_any([*problems, *check_experiment(experiment)])
    return experiment


def folder_of(arm: str) -> str:
    """Return the beginning of the names of an arm's folders."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", arm).strip("_")


def filled(text: str, values: Mapping[str, object]) -> list[str]:
    """Return the words of a command with ``{run}`` and others replaced. Not by ``str.format``: words may hold JSON."""
    words = shlex.split(text)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", str(value)) for word in words]
    return words


def check_experiment(asked: Experiment) -> list[Problem]:
    """Return what is wrong beyond the types of the fields."""
    problems = []
    places = {"fields": asked.fields}
    for arm, fields in asked.arms.items():
        places[f"arms.{arm}"] = fields
    for place, fields in places.items():
        for name in OWN:
            if name in fields:
                reason = f"{name} is the runner's"
                problems.append(Problem(place, fields[name], reason, "remove it"))
    for arm, fields in asked.arms.items():
        if not folder_of(arm):
            problems.append(Problem("arms", arm, "a name needs a letter or a digit", "give it one"))
        recipe = fields.get("recipe")
        if not isinstance(fields.get("recipe", asked.recipe) or None, str):
            reason = f"no name of a recipe for {arm}"
            problems.append(Problem(f"arms.{arm}.recipe", recipe, reason, "give one as a text"))
    reference = asked.reference
    if asked.arms and reference and reference not in asked.arms:
        remedy = f"{did_you_mean(reference, asked.arms)} Or give --arms {reference} as well"
        problems.append(Problem("reference", reference, "no such arm", remedy))
    if len(asked.seeds) > MOST_FLIPPED:
        reason = "too many for the sign-flip test"
        problems.append(Problem("seeds", len(asked.seeds), reason, f"give {MOST_FLIPPED} or fewer"))
    for seed, count in sorted(Counter(asked.seeds).items()):
        if count > 1:
            problems.append(Problem("seeds", seed, "named twice", "name it once"))
    for key in ("before", "score", "then"):
        for text in getattr(asked, key):
            try:
                if shlex.split(text) in ([], ["launch"]):
                    problems.append(Problem(key, text, "no command", "write one, or remove it"))
            except ValueError as error:
                reason = f"cannot be read ({error})"
                problems.append(Problem(key, text, reason, "write it as in a shell"))
    return problems
