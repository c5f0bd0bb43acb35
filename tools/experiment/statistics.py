"""What a few runs with different seeds say of a figure: its mean with an interval, and whether two models differ.

Models that are compared share their seeds, so differences are taken seed by seed: what a seed does to all of them alike
falls out. An interval is Student's (it takes differences as normal); the sign-flip test takes them as symmetric about 0
if there is no difference, and nothing else. Several claims at once are corrected by Holm's method.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
"""Of every interval."""
MOST_FLIPPED = 20
"""Differences whose sign patterns are all tried: a million."""


@dataclass(frozen=True)
class Sample:
    """Values of one figure, summed up."""

    n: int
    mean: float
    sd: float | None
    """Standard deviation with n - 1; None for a single value, or where one is not finite."""
    half_width: float | None
    """Of Student's interval of the mean; None as for ``sd``."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """From where to where the interval goes, if there is one."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


def sample(values: Sequence[float]) -> Sample:
    """Return mean, standard deviation and the 95 % interval of the mean.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values: nothing to sum up")
    count, mean = len(values), sum(values) / len(values)
    if count == 1 or not all(map(math.isfinite, values)):
        return Sample(count, mean, None, None)
    sd = statistics.stdev(values)
    from scipy.special import stdtrit  # half a second, which most readers of this module need not wait

    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Sample(count, mean, sd, quantile * sd / math.sqrt(count))


def paired(values: Mapping[int, float], reference: Mapping[int, float]) -> dict[int, float]:
    """``values`` less ``reference``, by the seeds that both have, ascending."""
    return {seed: values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())}


def sign_flip(differences: Sequence[float]) -> float:
    """Exact two-sided p of the sign-flip (permutation) test: in how many of all 2^n patterns of signs the sum is at
    least as far from 0 as it is.

    Args:
        differences: paired, finite, 1 to :data:`MOST_FLIPPED`.

    Returns:
        2 / 2^n at least; 1 where all are 0.

    Raises:
        ValueError: there are none, too many, or one is not finite.
    """
    if not 1 <= len(differences) <= MOST_FLIPPED or not all(map(math.isfinite, differences)):
        raise ValueError(f"1 to {MOST_FLIPPED} finite differences are wanted")
    sums = np.array([differences[0]])  # the other sign of the first mirrors all of them
    for each in differences[1:]:
        sums = np.concatenate([sums + each, sums - each])
    slack = 1e-12 * sum(map(abs, differences))  # equal sums, added in another order
    return float(np.mean(np.abs(sums) >= abs(sum(differences)) - slack))


def holm(ps: Sequence[float]) -> list[float]:
    """Return each p adjusted for there being several (Holm 1979), in the given order: those at most 0.05 hold together
    with 95 % confidence."""
    adjusted, least = [0.0] * len(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[at]))
        adjusted[at] = least
    return adjusted
