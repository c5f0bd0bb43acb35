"""PoSE: the rules by hand, by exhaustion and by statistics."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from tape_ds.data.pose import Pose, draw_lengths, draw_positions, draw_sample, draw_shifts

DRAWS = 20_000
LEAST_P = 1e-3  # with the fixed seeds below the outcome is always the same


class Scripted:
    """A generator that hands out given numbers and notes the ranges it was asked for."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)
        self.ranges = []

    def integers(self, low, high, endpoint):
        """The next number, which must lie in the range."""
        assert endpoint
        self.ranges.append((low, high))
        number = self.numbers.pop(0)
        assert low <= number <= high
        return number


def uniform(values, low, high):
    """Whether ``values`` look uniform on low .. high and all of these occur."""
    counts = Counter(values)
    assert set(counts) == set(range(low, high + 1))
    return chisquare([counts[value] for value in range(low, high + 1)]).pvalue > LEAST_P


def reference(ids, window, target, rng):
    """The two-chunk algorithm of the original, line by line, with its random module replaced by ``rng``."""
    n = len(ids)
    count = min(n, window)
    first = rng.integers(1, (count + 1) // 2, endpoint=True)
    end = rng.integers(count, n, endpoint=True)
    chosen = np.concatenate([ids[:first], ids[end - (count - first) : end]])
    positions = np.arange(count)
    positions[first:] += rng.integers(0, target - count, endpoint=True)
    return chosen, positions


def test_golden_two_chunks():
    """Worked by hand: n = 20, c = 8, T = 32; first chunk 3, 7 tokens left out, 11 positions skipped."""
    rng = Scripted(3, 7, 11)
    ids, positions = draw_sample(np.arange(100, 120), 8, 32, 2, rng)
    assert ids.tolist() == [100, 101, 102, 110, 111, 112, 113, 114]
    assert positions.tolist() == [0, 1, 2, 14, 15, 16, 17, 18]
    assert rng.ranges == [(1, 4), (0, 12), (0, 24)]


def test_golden_four_chunks():
    """Worked by hand: c = 10 as 3 + 1 + 2 + 4; shifts 0, 5, 5, 20 of at most 40 - 10."""
    rng = Scripted(3, 1, 2, 5, 5, 20)
    assert draw_positions(10, 40, 4, rng).tolist() == [0, 1, 2, 8, 9, 10, 26, 27, 28, 29]
    assert rng.ranges == [(1, 3), (1, 3), (1, 3), (0, 30), (5, 30), (5, 30)]


@pytest.mark.parametrize("n", [3, 8, 9, 50])
def test_two_chunks_are_the_original(n):
    """The same distribution: exhaustively the same outcomes as the original's, for the same choices."""
    ids = np.arange(n) + 7
    count = min(n, 8)
    for first in range(1, (count + 1) // 2 + 1):
        for skipped in {0, (n - count) // 2, n - count}:
            for shift in (0, 1, 16 - count):
                ours = draw_sample(ids, 8, 16, 2, Scripted(first, skipped, shift))
                theirs = reference(ids, 8, 16, Scripted(first, count + skipped, shift))
                np.testing.assert_array_equal(ours[0], theirs[0])
                np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 16])
@pytest.mark.parametrize(
    ("n", "window", "target"), [(500, 16, 64), (16, 16, 16), (7, 16, 20), (1, 16, 16), (17, 16, 16)]
)
def test_properties(chunks, n, window, target):
    rng = np.random.default_rng(chunks)
    ids = np.arange(n, dtype=np.int32)
    for _ in range(200):
        chosen, positions = draw_sample(ids, window, target, chunks, rng)
        assert len(chosen) == len(positions) == min(n, window)
        assert chosen.dtype == np.int32
        assert positions.dtype == np.int64
        assert positions[0] == 0 == chosen[0]
        assert (np.diff(positions) > 0).all()
        assert (np.diff(chosen) > 0).all(), "content in order, nothing twice"
        assert positions[-1] < target
        assert (np.diff(positions) > 1).sum() < chunks
        if target == len(positions):
            assert positions.tolist() == list(range(target))


def test_both_ends_are_reached():
    rng = np.random.default_rng(1)
    last = {int(draw_positions(4, 8, 2, rng)[-1]) for _ in range(500)}
    assert last == {3, 4, 5, 6, 7}
    ends = {int(draw_sample(np.arange(9), 4, 8, 3, rng)[0][-1]) for _ in range(500)}
    assert max(ends) == 8


def test_two_chunk_draws_are_uniform():
    """Each of the three draws, and the two skips independent of one another."""
    rng = np.random.default_rng(2)
    first, left_out, skipped = [], [], []
    for _ in range(DRAWS):
        ids, positions = draw_sample(np.arange(30), 9, 24, 2, rng)
        skipped.append(int(positions[-1]) - 8)
        left_out.append(int(ids[-1]) - 8)
        jump = np.flatnonzero(np.diff(positions) > 1)
        if len(jump):
            first.append(int(jump[0]) + 1)
    assert uniform(first, 1, 5)
    assert uniform(left_out, 0, 21)
    assert uniform(skipped, 0, 15)
    assert abs(np.corrcoef(left_out, skipped)[0, 1]) < 0.03


def test_later_shifts_are_uniform_above_the_one_before():
    rng = np.random.default_rng(3)
    shifts = np.array([draw_shifts(4, 10, rng) for _ in range(DRAWS)])
    assert (shifts[:, 0] == 0).all()
    assert uniform(shifts[:, 1].tolist(), 0, 10)
    for before in (0, 4, 7):
        assert uniform(shifts[shifts[:, 1] == before, 2].tolist(), before, 10)
        assert uniform(shifts[shifts[:, 2] == before, 3].tolist(), before, 10)


def test_lengths_are_uniform_up_to_an_even_share():
    rng = np.random.default_rng(4)
    lengths = np.array([draw_lengths(12, 3, rng) for _ in range(DRAWS)])
    assert (lengths.sum(1) == 12).all()
    assert lengths.min() == 1
    assert uniform(lengths[:, 0].tolist(), 1, 4)
    assert uniform(lengths[lengths[:, 0] == 1, 1].tolist(), 1, 6)
    assert uniform(lengths[lengths[:, 0] == 4, 1].tolist(), 1, 4)
    assert draw_lengths(2, 5, rng).tolist() == [1, 1]


def test_reach_limits_the_content():
    rng = np.random.default_rng(5)
    near = [int(Pose(8, 64, reach=5).draw(np.arange(1000), rng)[0].max()) for _ in range(2000)]
    far = [int(Pose(8, 64).draw(np.arange(1000), rng)[0].max()) for _ in range(2000)]
    assert max(near) == 39
    assert max(far) > 900


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"window": 8, "target": 16, "chunks": 1}, "chunks = 1"),
        ({"window": 2, "target": 16, "chunks": 3}, "window = 2"),
        ({"window": 8, "target": 7}, "target = 7"),
        ({"window": 8, "target": 16, "reach": 0}, "reach = 0"),
    ],
)
def test_settings_that_allow_no_draw(settings, wrong):
    with pytest.raises(ValueError, match=wrong):
        Pose(**settings)


def test_rows_that_do_not_fit():
    rng = np.random.default_rng(0)
    for count, target, chunks in ((9, 8, 2), (0, 8, 2), (4, 8, 0)):
        with pytest.raises(ValueError, match=r"does not fit|must be 1"):
            draw_positions(count, target, chunks, rng)
    with pytest.raises(ValueError, match="does not fit"):
        draw_sample(np.array([]), 4, 8, 2, rng)
