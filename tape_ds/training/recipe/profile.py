"""The section of every recipe that has a few steps of a run recorded, see :mod:`tape_ds.training.profiling`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tape_ds.errors import Problem
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.recipe import Recipe

CHECKS = Checks()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Which steps are recorded, and where."""

    profile: bool = False
    """Record some steps: a trace, what each part of a step took in time and memory, and what was communicated, in the
    run's folder under ``profile``. Such steps are slower, all others are not."""
    profile_start: int = 3
    """The first of them, counted from where this process begins; the steps before it are warm-up."""
    profile_steps: int = 2
    """How many; a trace of a large model has hundreds of megabytes for each."""
    profile_ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks that record."""


@CHECKS.reads("profile", "profile_start", "profile_steps", "max_steps")
def _window(recipe: "Recipe") -> Iterator[Problem]:
    profile = recipe.profile
    for name in ("profile_start", "profile_steps"):
        if getattr(profile, name) < 1:
            yield Problem(name, getattr(profile, name), "too small", "give 1 or more")
    steps, last = recipe.trainer_value("max_steps"), profile.profile_start + profile.profile_steps - 1
    if profile.profile and 0 < steps < last:
        wrong = f"with profile_steps = {profile.profile_steps} it needs {last} steps, and max_steps = {steps}"
        remedy = "begin earlier, record fewer, or take more steps"
        yield Problem("profile_start", profile.profile_start, wrong, remedy)


@CHECKS.reads("profile", "profile_ranks")
def _ranks(recipe: "Recipe") -> Iterator[Problem]:
    ranks, world = recipe.profile.profile_ranks, recipe.world_size
    if not recipe.profile.profile:
        return
    if not ranks:
        yield Problem("profile_ranks", ranks, "nobody would record", "give 0, or remove it")
    elif wrong := [rank for rank in ranks if not 0 <= rank < world]:
        yield Problem("profile_ranks", wrong, f"ranks go from 0 to {world - 1} here", "give some of those")
