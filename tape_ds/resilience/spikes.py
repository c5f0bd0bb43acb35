"""A loss far above the losses before it: found by the median and its deviations, which a spike itself hardly moves."""

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

FEWEST = 16
"""Losses that must be known before a new one is judged (all of the window, where that is shorter)."""
PATIENCE = 8
"""Spikes in a row after which the level is taken to have changed."""
TO_SIGMA = 1.4826
"""A normal distribution's standard deviation is so many times its median absolute deviation."""
LEAST_SHARE, LEAST = 0.005, 1e-3
"""The deviation is taken to be at least this share of the median, and at least so many nats: after a constant history
every ripple would else be infinitely many deviations away."""


@dataclass(frozen=True)
class Spike:
    """A loss that stands out, and from what."""

    value: float
    """The loss."""
    median: float
    """The middle of the losses before it."""
    sigmas: float
    """Standard deviations between the two."""
    new_level: bool
    """Whether this was one too many in a row: from here on this is what losses are like."""

    def __str__(self) -> str:
        text = f"the loss {self.value:.4g} is {self.sigmas:.1f} sigma above {self.median:.4g}, the median before it"
        return f"{text}; the {PATIENCE}th in a row: losses are compared anew" if self.new_level else text


class SpikeDetector:
    """Compares each loss with the last ``window`` ones.

    Only a loss above them can be a spike, so the fall of early training is none. A spike is not one of the losses that
    the next ones are compared with; but after ``PATIENCE`` of them in a row the level has changed for good, and the
    history begins again with these. Losses that are not finite are passed over: they are no measure of anything, and
    counted elsewhere (:class:`tape_ds.resilience.guards.NonFinite`).

    Ranks that are to act alike must give it the same losses.

    Args:
        sigma: standard deviations above the median from which a loss is a spike; 0: none is.
        window: losses that a new one is compared with.
    """

    def __init__(self, sigma: float, window: int):
        self.sigma = sigma
        self.history: deque[float] = deque(maxlen=window)
        self.above: list[float] = []
        """Spikes since the last loss that was none."""

    def observe(self, loss: float) -> Spike | None:
        """Take in the next loss; what it is, if it is a spike."""
        if not self.sigma or not math.isfinite(loss):
            return None
        median = deviation = math.inf  # while there is too little history
        if len(self.history) >= min(FEWEST, self.history.maxlen or FEWEST):
            median = statistics.median(self.history)
            deviation = TO_SIGMA * statistics.median(abs(each - median) for each in self.history)
            deviation = max(deviation, LEAST_SHARE * abs(median), LEAST)
        if loss <= median + self.sigma * deviation:
            self.history.append(loss)
            self.above.clear()
            return None
        self.above.append(loss)
        new_level = len(self.above) == PATIENCE
        if new_level:
            self.history.clear()
            self.history.extend(self.above)
            self.above.clear()
        return Spike(loss, median, (loss - median) / deviation, new_level)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it; JSON brings it back to the last digit."""
        return {"history": list(self.history), "above": list(self.above)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`; of a longer history the end."""
        self.history.clear()
        self.history.extend(state["history"])
        self.above = list(state["above"])
