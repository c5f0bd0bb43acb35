"""The section of every recipe that has a few steps of a run recorded, see :mod:`tape_ds.training.profiling`."""

from collections.abc import Iterator

from pydantic import Field

from tape_ds.errors import Problem
from tape_ds.fields import Section, rule
from tape_ds.recipe.trainer import Whole


class Profile(Section):
    """Which steps are recorded, and where."""

    profile: bool = False
    """Record some steps with torch's profiler: a trace, what each part of a step took, on CUDA every allocation, in the
    run's folder under ``profile``. Such steps are slower, all others are not."""
    profile_start: int = Field(3, ge=1)
    """The first of them, counted from where this process begins; the steps before it are warm-up."""
    profile_steps: int = Field(2, ge=1)
    """How many; a trace of a large model has hundreds of megabytes for each."""
    profile_ranks: list[int] = [0]
    """Ranks that record."""

    @rule("profile", "profile_start", "profile_steps", "max_steps")
    def _window(self, whole: Whole) -> Iterator[Problem]:
        steps, last = whole.trainer_value("max_steps"), self.profile_start + self.profile_steps - 1
        if self.profile and 0 < steps < last:
            wrong = f"with profile_steps = {self.profile_steps} it needs {last} steps, and max_steps = {steps}"
            yield Problem("profile_start", self.profile_start, wrong, "begin earlier, record fewer, or take more steps")

    @rule("profile", "profile_ranks")
    def _ranks(self, whole: Whole) -> Iterator[Problem]:
        if not self.profile:
            return
        if not self.profile_ranks:
            yield Problem("profile_ranks", self.profile_ranks, "nobody would record", "give 0, or remove it")
        elif wrong := [rank for rank in self.profile_ranks if not 0 <= rank < whole.world_size]:
            remedy = f"ranks go from 0 to {whole.world_size - 1} here"
            yield Problem("profile_ranks", wrong, remedy, "give some of those")
