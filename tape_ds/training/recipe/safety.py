"""The section of every recipe that says how a run stays alive: which checkpoints are kept, and when it is stopped."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tape_ds.errors import Problem
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.recipe import Recipe

CHECKS = Checks()


@dataclass(frozen=True, kw_only=True)
class Safety:
    """How a run stays alive."""

    keep_every: int | None = None
    """Checkpoints of steps that this divides are kept, whatever ``save_total_limit`` says."""
    keep_steps: list[int] = field(default_factory=list)
    """Steps that save, and whose checkpoints are kept."""
    async_save: bool = False
    """Write checkpoints while training goes on: a save takes only the time to copy the state to the CPU's memory, and
    that much memory."""
    resume_anyway: bool = False
    """Go on although settings differ that change the numbers from here on but damage nothing; what differs is said."""
    start_anew: bool = False
    """Begin again in a folder that holds another run; its checkpoints are removed."""
    nonfinite_limit: int = 5
    """Steps in a row whose loss or gradient is not finite on some rank, after which the run stops; 0: never."""
    spike_sigma: float = 8.0
    """Standard deviations (estimated from the median's deviations) above the median of the last ``spike_window`` losses
    that make a loss a spike; 0: none is."""
    spike_window: int = 128
    """Losses that a new one is compared with."""
    spike_action: Literal["warn", "skip"] = "warn"
    """What happens at a spike: it is said, or the step is left out as well."""
    watchdog_seconds: float = 1800.0
    """Time without any progress on a rank after which stacks are written and the job is ended; 0: never."""


@CHECKS.reads("keep_every", "keep_steps", "save_strategy")
def _keeping(recipe: "Recipe") -> Iterator[Problem]:
    every, steps = recipe.safety.keep_every, recipe.safety.keep_steps
    if every is not None and every < 1:
        yield Problem("keep_every", every, "too small", "give 1 or more, or leave it out")
    if wrong := [step for step in steps if step < 1]:
        yield Problem("keep_steps", wrong, "no step has such a number", "give steps from 1 on")
    if recipe.trainer_value("save_strategy") == "no":
        for name, value in (("keep_every", every), ("keep_steps", steps)):
            if value:
                yield Problem(name, value, "save_strategy is no: nothing is saved", "remove one of the two")


@CHECKS.reads("start_anew", "resume_from_checkpoint")
def _anew(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.safety.start_anew and recipe.resume_from_checkpoint:
        wrong = f"it removes what resume_from_checkpoint = {recipe.resume_from_checkpoint!r} would go on from"
        yield Problem("start_anew", True, wrong, "remove one of the two")


@CHECKS.reads("nonfinite_limit", "spike_sigma", "spike_window", "watchdog_seconds")
def _limits(recipe: "Recipe") -> Iterator[Problem]:
    safety = recipe.safety
    for name in ("nonfinite_limit", "spike_sigma", "watchdog_seconds"):
        if not getattr(safety, name) >= 0:
            yield Problem(name, getattr(safety, name), "negative", "give 0 (never) or more")
    if safety.spike_window < 8:
        yield Problem("spike_window", safety.spike_window, "too few losses to compare with", "give 8 or more")


@CHECKS.reads("spike_action", "fp16")
def _skipping(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.safety.spike_action == "skip" and recipe.trainer_value("fp16"):
        wrong = "fp16's loss scale takes a step that is left out for an overflow, and shrinks"
        yield Problem("spike_action", "skip", wrong, "use bf16, or spike_action: warn")
