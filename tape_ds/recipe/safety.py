"""The section of every recipe that says how a run stays alive: which checkpoints are kept, and when it is stopped."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from tape_ds.errors import Problem
from tape_ds.fields import Section, rule
from tape_ds.recipe.trainer import Whole


class Safety(Section):
    """How a run stays alive."""

    keep_every: int | None = Field(None, ge=1)
    """Checkpoints of steps that this divides are kept, whatever ``save_total_limit`` says."""
    keep_steps: list[Annotated[int, Field(ge=1)]] = []
    """Steps that save, and whose checkpoints are kept."""
    async_save: bool = False
    """Write checkpoints while training goes on: a save takes only the time to copy the state to the CPU's memory, and
    that much memory."""
    resume_anyway: bool = False
    """Go on although settings differ that change the numbers from here on but damage nothing; what differs is said."""
    start_anew: bool = False
    """Begin again in a folder that holds another run; its checkpoints are removed."""
    nonfinite_limit: int = Field(5, ge=0)
    """Steps in a row whose loss or gradient is not finite on some rank, after which the run stops; 0: never."""
    spike_sigma: float = Field(8.0, ge=0)
    """Standard deviations (estimated from the median's deviations) above the median of the last ``spike_window`` losses
    that make a loss a spike; 0: none is."""
    spike_window: int = Field(128, ge=8)
    """Losses that a new one is compared with."""
    spike_action: Literal["warn", "skip"] = "warn"
    """What happens at a spike: it is said, or the step is left out as well."""
    watchdog_seconds: float = Field(1800.0, ge=0)
    """Time without any progress on a rank after which stacks are written and the job is ended; 0: never."""

    @rule("keep_every", "keep_steps", "save_strategy")
    def _keeping(self, whole: Whole) -> Iterator[Problem]:
        if whole.trainer_value("save_strategy") == "no":
            for name in ("keep_every", "keep_steps"):
                if value := getattr(self, name):
                    yield Problem(name, value, "save_strategy is no: nothing is saved", "remove one of the two")

    @rule("start_anew", "resume_from_checkpoint")
    def _anew(self, whole: Whole) -> Iterator[Problem]:
        if self.start_anew and (checkpoint := whole.trainer_value("resume_from_checkpoint")):
            wrong = f"it removes what resume_from_checkpoint = {checkpoint!r} would go on from"
            yield Problem("start_anew", True, wrong, "remove one of the two")

    @rule("spike_action", "fp16")
    def _skipping(self, whole: Whole) -> Iterator[Problem]:
        if self.spike_action == "skip" and whole.trainer_value("fp16"):
            wrong = "fp16's loss scale takes a step that is left out for an overflow, and shrinks"
            yield Problem("spike_action", "skip", wrong, "use bf16, or spike_action: warn")
