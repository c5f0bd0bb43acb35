"""Intervals, sign flips and Holm's correction, against values worked by hand and known tables."""

import math

import pytest

from tools.experiment import statistics


def test_an_interval_is_students():
    """1 to 5: mean 3, standard deviation sqrt(2.5), and t(4; 0.975) = 2.776 of every table."""
    found = statistics.sample([1, 2, 3, 4, 5])
    assert (found.n, found.mean) == (5, 3)
    assert found.sd == pytest.approx(math.sqrt(2.5))
    assert found.half_width == pytest.approx(2.7764 * math.sqrt(2.5 / 5), rel=1e-4)
    assert found.interval == pytest.approx((3 - 1.9632, 3 + 1.9632), abs=1e-3)


@pytest.mark.parametrize(("n", "quantile"), [(2, 12.706), (3, 4.303), (10, 2.262), (20, 2.093)])
def test_quantiles_are_those_of_the_tables(n, quantile):
    values = [(-1) ** i for i in range(n)]
    found = statistics.sample(values)
    assert found.half_width == pytest.approx(quantile * found.sd / math.sqrt(n), rel=1e-4)


def test_a_single_value_has_no_interval():
    assert statistics.sample([2.5]) == statistics.Sample(1, 2.5, None, None)
    assert statistics.sample([2.5]).interval is None
    with pytest.raises(ValueError, match="no values"):
        statistics.sample([])


def test_what_is_not_finite_is_neither_hidden_nor_measured():
    found = statistics.sample([1.0, math.nan, 2.0])
    assert math.isnan(found.mean) and found.half_width is None
    assert statistics.sample([1.0, math.inf]) == statistics.Sample(2, math.inf, None, None)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([3.0], 1.0),  # either sign is as far from 0
        ([1.0, 2.0], 2 / 4),
        ([1.0, 2.0, 3.0], 2 / 8),
        # sums of three: 6, 0, 4, 2 and their mirrors; |2| and more are three of four
        (
            [1.0, -2.0, 3.0],
            6 / 8,
        ),
        ([-1.0, -2.0, -3.0], 2 / 8),
        ([0.1, 0.2, -0.3], 1.0),  # a sum of 0, up to rounding
        ([0.0, 0.0], 1.0),
        ([1.0] * 10, 2 / 1024),
        ([1.0] * 9 + [-1.0], 22 / 1024),  # ten in one direction or nine: 1 + 10, twice
    ],
)
def test_sign_flips_by_hand(differences, p):
    assert statistics.sign_flip(differences) == pytest.approx(p)


@pytest.mark.parametrize(
    ("ps", "adjusted"),
    [
        ([], []),
        ([0.04], [0.04]),
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # the textbook's example
        ([0.5, 0.4], [0.8, 0.8]),
        ([0.9, 0.001], [0.9, 0.002]),
    ],
)
def test_holm(ps, adjusted):
    assert statistics.holm(ps) == pytest.approx(adjusted)


@pytest.mark.parametrize("differences", [[], [1.0] * 21, [1.0, math.nan]])
def test_sign_flips_that_cannot_be_counted(differences):
    with pytest.raises(ValueError, match="1 to 20"):
        statistics.sign_flip(differences)
