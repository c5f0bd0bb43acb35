"""A step whose loss leaps, or whose numbers are not finite, is skipped, reported, or ends the run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds.config.sections import Safety
from tape_ds.resilience import guards
from tape_ds.resilience.guards import NonFinite, SkipCounter
from tape_ds.resilience.spikes import Spike, SpikeDetector


class StepGuards:
    """Every rank observes the losses of all ranks, so that all decide alike.

    ``file`` gets a line for each step that was not finite (None: another rank writes it); ``samples_of(step, rank)``
    names the samples that the rank read in it; ``say`` prints on one of the ranks.
    """

    def __init__(
        self,
        safety: Safety,
        file: Path | None,
        samples_of: Callable[[int, int], list[int]],
        say: Callable[[str], None],
    ):
        self.say = say
        self.skips_spikes = safety.spike_action == "skip"
        self.nonfinite = NonFinite(safety.nonfinite_limit, file, samples_of)
        self.spikes = SpikeDetector(safety.spike_sigma, safety.spike_window)
        self._protection: SkipCounter | None = None
        """Skips steps of an optimizer that would step on gradients that are not finite."""
        self._counted = 0
        """Steps left out before this one."""
        self._spike: Spike | None = None
        """Spike in the loss of this step."""

    def protect(self, optimizer: Any) -> None:
        self._protection = guards.protect(optimizer)

    def skipped_steps(self, engine: Any) -> int:
        """Steps left out so far, by this project and by ``engine``."""
        own = 0 if self._protection is None else self._protection.total
        return own + int(getattr(engine, "skipped_steps", 0))

    def finds_spike(self, losses: Sequence[float]) -> bool:
        """Whether the mean of the ranks' losses of this step is a spike, which :meth:`observe` then reports."""
        self._spike = self.spikes.observe(sum(losses) / len(losses))
        return self._spike is not None

    def observe(
        self,
        step: int,
        losses: Sequence[float],
        norms: Sequence[float],
        engine: Any,
        scaled_skip: bool | None,
    ) -> None:
        """Say of a step that has ended whether it was good. Raises StoppedByGuard after too many bad ones.

        ``losses`` and gradient ``norms`` are those of all ranks; ``scaled_skip``: whether a loss scaler left the step
        out, None without a scaler.
        """
        before = self._counted
        self._counted = self.skipped_steps(engine)
        if not self.skips_spikes:
            self.finds_spike(losses)
        spike = self._spike
        self._spike = None
        if spike is not None and self.skips_spikes:
            # not for its gradients, which are no reason to stop
            self.say(f"step {step}: {spike}; step SKIPPED, weights unchanged")
            return
        if spike is not None:
            self.say(f"step {step}: {spike}")

        skipped = self._counted > before or bool(scaled_skip)
        scales = scaled_skip is not None or getattr(engine, "fp16_enabled", lambda: False)()
        message = self.nonfinite.observe(step, losses, norms, skipped, rescaled=skipped and scales)
        if message is not None:
            self.say(message)

    def state(self) -> dict[str, Any]:
        return {
            "nonfinite": self.nonfinite.state(),
            "spikes": self.spikes.state(),
            "protection": None if self._protection is None else self._protection.state(),
        }

    def load_state(self, state: Mapping[str, Any], engine: Any) -> None:
        """Load what :meth:`state` returned; ``engine`` has its own count already."""
        self.nonfinite.load_state(state["nonfinite"])
        self.spikes.load_state(state["spikes"])
        if self._protection is not None and state["protection"] is not None:
            self._protection.load_state(state["protection"])
        self._counted = self.skipped_steps(engine)
