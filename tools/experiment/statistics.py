"""Statistics over a few seeds: intervals of means, and tests of whether two models differ.

Models that are compared share their seeds, so differences are taken seed by seed, which removes what a seed does to all
of them. Intervals are Student's (they assume normal differences); the sign-flip test assumes only that differences are
symmetric about 0 under the null hypothesis. Holm's method corrects for several claims at once.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

# of every interval
CONFIDENCE = 0.95
# differences whose sign patterns are all tried: a million
MOST_FLIPPED = 20


@dataclass(frozen=True)
class Sample:
    """Values of one figure, summarised."""

    n: int
    mean: float
    sd: float | None
    """Standard deviation with n - 1; None for a single value, or if one is not finite."""
    half_width: float | None
    """Of Student's interval of the mean; None as for ``sd``."""

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.half_width is None:
            return None
        return (self.mean - self.half_width, self.mean + self.half_width)


def sample(values: Sequence[float]) -> Sample:
    """Return mean, standard deviation and the 95 % interval of the mean."""
    if not values:
        raise ValueError("no values: nothing to summarise")
    count = len(values)
    mean = sum(values) / len(values)
    if count == 1 or not all(map(math.isfinite, values)):
        return Sample(count, mean, None, None)
    sd = statistics.stdev(values)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Sample(count, mean, sd, quantile * sd / math.sqrt(count))


def t_test(differences: Sequence[float]) -> float:
    """Return the two-sided p of the paired t test: of a mean of 0 under Student's distribution."""
    # without a spread there is no distribution
    if len(set(differences)) == 1:
        if differences[0] == 0:
            return 1.0
        return 0.0
    # takes a second to import
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, popmean=0).pvalue)


def sign_flip(differences: Sequence[float]) -> float:
    """Return the exact two-sided p of the sign-flip (permutation) test: the share of all 2^n patterns of signs with a
    sum at least as far from 0 as the observed one; at least 2 / 2^n.

    Args:
        differences: paired, finite, 1 to :data:`MOST_FLIPPED`.
    """
    if not 1 <= len(differences) <= MOST_FLIPPED or not all(map(math.isfinite, differences)):
        raise ValueError(f"1 to {MOST_FLIPPED} finite differences are needed")
    # scipy refuses it
    if len(differences) == 1:
        return 1.0
    # takes a second to import
    from scipy.stats import permutation_test

    sample_of = (np.asarray(differences, dtype=float),)
    return float(
        permutation_test(
            sample_of, np.sum, permutation_type="samples", n_resamples=np.inf, batch=4096
        ).pvalue
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Return each p adjusted for several tests (Holm 1979), in the given order."""
    adjusted = [0.0] * len(ps)
    least = 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[at]))
        adjusted[at] = least
    return adjusted
