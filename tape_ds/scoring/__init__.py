"""Measures of a model on long text, the resumable evaluations that compute them, and the page that compares them."""

from collections.abc import Callable, Sequence
from typing import Any

CHUNK = 4096
"""Tokens of a prompt that are read at once, if the model's cache allows pieces."""

Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Calls a function on every item and returns the results in order. Scorers take it as an argument, so that a training
run can spread the items over its ranks and keep them in step under ZeRO-3."""


def in_turn(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
    """Call ``work`` on every job, one after another."""
    return [work(job) for job in jobs]
