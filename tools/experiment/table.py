"""What an experiment is: a YAML file with arms, seeds and commands that score; what a person may write, and its checks.

Files lie in ``tools/experiments``; a path to another one does as well. A file's mapping ``paper`` replaces some of its
keys at the scale of a published table (``--scale paper``).
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tape_ds import paths
from tape_ds.config import files
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.fields import Section
from tape_ds.installation import ROOT

FOLDER = ROOT / "tools" / "experiments"
SMALL, PAPER = "small", "paper"
SCALES = (SMALL, PAPER)
"""What a file says itself, for two CPU cores; what its ``paper`` says, for GPUs."""
OWN = ("seed", "output_dir", "resume", "resume_from_checkpoint")
"""Fields of a recipe that the runner decides."""
MOST_SEEDS = 20
"""The sign-flip test tries all patterns of as many signs."""


class Experiment(Section):
    """One experiment."""

    about: str
    """What it shows, in a line."""
    label: str = ""
    """The published table or figure that it repeats: ``Table 6``."""
    recipe: str = ""
    """Of every arm that names no other."""
    fields: dict[str, Any] = {}
    """Of the recipe, for every run."""
    arms: dict[str, dict[str, Any]] = {}
    """Name -> fields of the recipe that it sets; ``recipe`` among them."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = []
    """Every arm is trained with each; none: the recipe's own."""
    processes: int | None = Field(default=None, ge=1)
    """Of each run; none: every GPU, or 2 on a CPU, shared by the jobs."""
    reference: str = ""
    """The arm that the others are compared with; none: the first."""
    primary: str = ""
    """The figure that decides; none: the first."""
    may_differ: list[str] = []
    """Of what arms have to share, what these need not: names of fields, or ``tokens``."""
    before: list[str] = []
    """Commands that come before the runs."""
    score: list[str] = []
    """Commands for every run, when it is trained."""
    then: list[str] = []
    """Commands when all runs are scored."""
    output: str = ""
    """Folder of the runs; none: ``runs/NAME``."""
    pictures: list[str] = []
    """Patterns of files in it that are part of the result."""
    names: dict[str, str] = {}
    """Arm, or a row of a result -> its row in the published table."""
    setting: str = ""
    """The model that is measured, and on what."""
    remarks: list[str] = []
    """What it can show and what it cannot."""
    needs: str = ""
    """What has to be there beforehand."""
    minutes: float | None = None
    """On two CPU cores, all of it."""


def shipped() -> list[str]:
    """Return names of the experiments of ``tools/experiments``; figures and tables by their number."""
    names = [path.stem for path in FOLDER.glob("*.yaml")]
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def read(name: str, scale: str = SMALL) -> Experiment:
    """Return the experiment of a name or of a file.

    Raises:
        UserError: everything wrong with it by itself; what no recipe takes is found when the recipes are loaded.
    """
    is_path = name.endswith((".yaml", ".yml"))
    path = paths.of(name) if is_path else FOLDER / f"{re.sub(r'[ .]+', '', name).lower()}.yaml"
    if not path.is_file():
        wrong = "no such file" if is_path else "no such experiment"
        remedy = f"{did_you_mean(name, shipped())}, or the path of a .yaml file"
        raise UserError(Problem("experiment", name, wrong, remedy))
    problems: list[Problem] = []
    given = {key: each.value for key, each in files.read_yaml(path, "experiment", problems).items()}
    raise_if_any(problems)
    at_scale = given.pop(PAPER, None)
    if scale == PAPER:
        if not isinstance(at_scale, dict):
            raise UserError(Problem("scale", scale, f"{path.name} has no such form", "leave it out"))
        given |= at_scale
    problems = Experiment.check(given)
    broken = {problem.field for problem in problems}
    found = Experiment.build({"about": ""} | {key: each for key, each in given.items() if key not in broken})
    raise_if_any([*problems, *check(found)])
    return found


def check(asked: Experiment) -> list[Problem]:
    """Return what is wrong with an experiment beyond the types of its fields."""
    problems = []
    for arm, own in asked.arms.items():
        problems += [
            Problem(f"arms.{arm}", own[name], f"{name} is the runner's", "remove it") for name in OWN if name in own
        ]
        if not folder_of(arm):
            problems.append(Problem("arms", arm, "a name needs a letter or a digit", "give it one"))
        if not isinstance(own.get("recipe", ""), str):
            problems.append(Problem(f"arms.{arm}.recipe", own["recipe"], "no name of a recipe", "give one as a text"))
        if not (asked.recipe or "recipe" in own):
            problems.append(Problem("recipe", None, f"missing for {arm}", "name one"))
    problems += [Problem("fields", name, "decided by the runner", "remove it") for name in OWN if name in asked.fields]
    if asked.arms and asked.reference and asked.reference not in asked.arms:
        remedy = f"{did_you_mean(asked.reference, asked.arms)} Or give --arms {asked.reference} as well"
        problems.append(Problem("reference", asked.reference, "no such arm", remedy))
    if len(asked.seeds) > MOST_SEEDS:
        problems.append(
            Problem("seeds", len(asked.seeds), "too many for the sign-flip test", f"give {MOST_SEEDS} or fewer")
        )
    twice = {seed for seed in asked.seeds if asked.seeds.count(seed) > 1}
    problems += [Problem("seeds", seed, "named twice", "name it once") for seed in sorted(twice)]
    for key in ("before", "score", "then"):
        for text in getattr(asked, key):
            try:
                if shlex.split(text) in ([], ["launch"]):
                    problems.append(Problem(key, text, "no command", "write one, or remove it"))
            except ValueError as error:
                problems.append(Problem(key, text, f"cannot be read ({error})", "write it as in a shell"))
    return problems


def folder_of(arm: str) -> str:
    """Return what the names of an arm's folders begin with."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", arm).strip("_")


def filled(text: str, values: Mapping[str, object]) -> list[str]:
    """Return the words of a command; ``{run}`` and the like stand for ``values``. Not ``str.format``: words may hold
    JSON."""
    words = shlex.split(text)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", str(value)) for word in words]
    return words


def output_of(asked: Experiment, name: str, scale: str) -> Path:
    """Return the folder of its runs, where the command line names none."""
    return Path(asked.output or f"runs/{Path(name).stem}{'' if scale == SMALL else f'_{scale}'}")
