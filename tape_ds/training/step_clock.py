"""How fast a run steps, and how long it still needs."""

import math
import time


class StepClock:
    """Counts from the first step on, so that setting a model up is left out."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def start(self, step: int) -> None:
        self._first = (step, time.perf_counter())
        self._last = self._first

    def lap(self, step: int, final_step: int) -> tuple[float, float | None]:
        """Steps per second since the lap before, and the seconds until ``final_step`` at the mean speed so far.

        NaN where no time has passed, None where no step was made.
        """
        now = time.perf_counter()
        last_step, last_time = self._last or (step, now)
        first_step, first_time = self._first or (last_step, last_time)
        self._last = (step, now)

        speed = math.nan
        if now > last_time:
            speed = (step - last_step) / (now - last_time)
        remaining = None
        if step > first_step:
            remaining = (now - first_time) / (step - first_step) * (final_step - step)
        return speed, remaining
