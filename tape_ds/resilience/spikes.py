"""Detect a loss far above the losses before it, by median and median deviation, which a spike hardly changes."""

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

FEWEST = 16
"""Losses that must be known before one is judged (all of the window, if that is shorter)."""
PATIENCE = 8
"""Spikes in a row after which the level has changed."""
TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
LEAST_SHARE = 0.005
LEAST = 1e-3
"""Lower bounds of the deviation: a share of the median, and nats. After a constant history every ripple would otherwise
be a spike."""


@dataclass(frozen=True)
class Spike:
    """A loss far above the recent ones."""

    value: float
    median: float
    """Median of the losses before it."""
    sigmas: float
    """Standard deviations between the two."""
    new_level: bool
    """Whether it was the last of :data:`PATIENCE` in a row."""

    def __str__(self) -> str:
        text = f"the loss {self.value:.4g} is {self.sigmas:.1f} sigma above {self.median:.4g}, the median before it"
        if self.new_level:
            return f"{text}; the {PATIENCE}th in a row: later losses are compared with these"
        return text


class SpikeDetector:
    """Compares each loss with the last ``window`` ones; ranks that must act alike give it the same losses.

    Only a loss above them can be a spike, so the fall of early training is none. A spike is not added to the history;
    but after :data:`PATIENCE` in a row the level has changed for good, and they become the history. Losses that are not
    finite are ignored: :class:`tape_ds.resilience.guards.NonFinite` counts them.

    Args:
        sigma: standard deviations above the median that make a loss a spike; 0: none is.
        window: length of the history.
    """

    def __init__(self, sigma: float, window: int):
        self.sigma = sigma
        self.history: deque[float] = deque(maxlen=window)
        self.above: list[float] = []
        """Spikes in a row up to now."""

    def observe(self, loss: float) -> Spike | None:
        """Add the next loss; return the spike, if it is one."""
        if not self.sigma or not math.isfinite(loss):
            return None
        # with too little history
        median = deviation = math.inf
        if len(self.history) >= min(FEWEST, self.history.maxlen or FEWEST):
            median = statistics.median(self.history)
            deviation = TO_SIGMA * statistics.median(abs(past - median) for past in self.history)
            deviation = max(deviation, LEAST_SHARE * abs(median), LEAST)
        if loss <= median + self.sigma * deviation:
            self.history.append(loss)
            self.above.clear()
            return None
        self.above.append(loss)
        # after a change of the data, say: without this no later loss would enter the history
        new_level = len(self.above) == PATIENCE
        if new_level:
            self.history.clear()
            self.history.extend(self.above)
            self.above.clear()
        return Spike(loss, median, (loss - median) / deviation, new_level)

    def state(self) -> dict[str, Any]:
        return {"history": list(self.history), "above": list(self.above)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`; of a longer history from its end."""
        self.history.clear()
        self.history.extend(state["history"])
        self.above = list(state["above"])
