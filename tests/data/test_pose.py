"""PoSE: the rules by hand, by exhaustion and by statistics."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from tape_ds.data import pose as drawing
from tape_ds.data.pose import PoseSequences, draw_lengths, draw_shifts


def pose_sequences(window, target, chunks=2, **options):
    return PoseSequences(window, target, drawing.Pose(chunks=chunks, **options))


DRAWS = 20_000
LEAST_P = 1e-3  # with the fixed seeds below the outcome is always the same


class Scripted:
    """A generator that hands out given numbers and notes the ranges it was asked for."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)
        self.ranges = []

    def integers(self, low, high, endpoint):
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
    ids, positions = pose_sequences(8, 32).draw(np.arange(100, 120), rng)
    assert ids.tolist() == [100, 101, 102, 110, 111, 112, 113, 114]
    assert positions.tolist() == [0, 1, 2, 14, 15, 16, 17, 18]
    assert rng.ranges == [(1, 4), (0, 12), (0, 24)]


def test_golden_four_chunks():
    """Worked by hand: c = 10 as 3 + 1 + 2 + 4; of 15 tokens 0, 2, 4 left out; shifts 0, 5, 5, 20 of at most 40 - 10."""
    rng = Scripted(3, 1, 2, 0, 2, 4, 5, 5, 20)
    ids, positions = pose_sequences(10, 40, chunks=4).draw(np.arange(100, 115), rng)
    assert ids.tolist() == [100, 101, 102, 103, 106, 107, 110, 111, 112, 113]
    assert positions.tolist() == [0, 1, 2, 8, 9, 10, 26, 27, 28, 29]
    assert rng.ranges == [(1, 3), (1, 3), (1, 3), (0, 5), (0, 5), (2, 5), (0, 30), (5, 30), (5, 30)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("skipped", [100, 101, 102, 110, 111, 112, 113, 114]),  # v = 7, its own draw
        ("contiguous", [100, 101, 102, 103, 104, 105, 106, 107]),  # v = 0
        ("aligned", [100, 101, 102, 114, 115, 116, 117, 118]),  # v = u = 11
    ],
)
def test_golden_contents(content, expected):
    """The paper's three choices of v for the same draws; n = 20, c = 8, T = 32. Positions are the same for all."""
    ids, positions = pose_sequences(8, 32, content=content).draw(
        np.arange(100, 120), Scripted(3, 7, 11)
    )
    assert ids.tolist() == expected
    assert positions.tolist() == [0, 1, 2, 14, 15, 16, 17, 18]


def test_golden_sorted_skips():
    """Worked by hand: shifts 7 and 3 are drawn, 3 and 7 are used."""
    rng = Scripted(2, 2, 0, 0, 7, 3)
    _, positions = pose_sequences(6, 14, chunks=3, skips="sorted").draw(np.arange(6), rng)
    assert positions.tolist() == [0, 1, 5, 6, 11, 12]
    assert rng.ranges[-2:] == [(0, 8), (0, 8)]


@pytest.mark.parametrize("n", [3, 8, 9, 50])
def test_two_chunks_are_the_original(n):
    """The same distribution: exhaustively the same outcomes as the original's, for the same choices."""
    ids = np.arange(n) + 7
    count = min(n, 8)
    for first in range(1, (count + 1) // 2 + 1):
        for skipped in {0, (n - count) // 2, n - count}:
            for shift in (0, 1, 16 - count):
                ours = pose_sequences(8, 16).draw(ids, Scripted(first, skipped, shift))
                theirs = reference(ids, 8, 16, Scripted(first, count + skipped, shift))
                np.testing.assert_array_equal(ours[0], theirs[0])
                np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize(
    "options", [{}, {"content": "contiguous"}, {"content": "aligned"}, {"skips": "sorted"}]
)
@pytest.mark.parametrize(
    ("chunks", "n", "window", "target"),
    [(2, 500, 16, 64), (5, 17, 16, 16), (16, 7, 16, 20), (3, 1, 16, 16)],
)
def test_properties(chunks, n, window, target, options):
    pose = pose_sequences(window, target, chunks, **options)
    rng = np.random.default_rng(chunks)
    ids = np.arange(n, dtype=np.int32)
    for _ in range(100):
        chosen, positions = pose.draw(ids, rng)
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


def test_two_chunk_draws_are_uniform():
    rng = np.random.default_rng(2)
    first, left_out, skipped = [], [], []
    for _ in range(DRAWS):
        ids, positions = pose_sequences(9, 24).draw(np.arange(30), rng)
        skipped.append(int(positions[-1]) - 8)
        left_out.append(int(ids[-1]) - 8)
        jump = np.flatnonzero(np.diff(positions) > 1)
        if len(jump):
            first.append(int(jump[0]) + 1)
    assert uniform(first, 1, 5)
    assert uniform(left_out, 0, 21)
    assert uniform(skipped, 0, 15)
    assert abs(np.corrcoef(left_out, skipped)[0, 1]) < 0.03


def test_sorted_shifts_are_uniform_taken_together():
    """As a set they are three uniform numbers: the three shifts of all draws, in any order, and the least of them."""
    rng = np.random.default_rng(14)
    shifts = np.array([draw_shifts(4, 10, rng, at_once=True) for _ in range(DRAWS)])
    assert (shifts[:, 0] == 0).all() and (np.diff(shifts) >= 0).all()
    assert uniform(shifts[:, 1:].ravel().tolist(), 0, 10)
    # of 11^3 outcomes, those whose least is k
    above = np.array([(11 - k) ** 3 - (10 - k) ** 3 for k in range(11)])
    assert (
        chisquare(np.bincount(shifts[:, 1], minlength=11), above / 11**3 * DRAWS).pvalue > LEAST_P
    )


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
    near = [
        int(pose_sequences(8, 64, reach=5).draw(np.arange(1000), rng)[0].max()) for _ in range(2000)
    ]
    far = [int(pose_sequences(8, 64).draw(np.arange(1000), rng)[0].max()) for _ in range(2000)]
    assert max(near) == 39
    assert max(far) > 900


@pytest.mark.parametrize(
    ("window", "target", "options", "field"),
    [
        (2, 16, {"chunks": 3}, "window"),
        (8, 7, {}, "window"),
        (8, 8, {}, "window"),
        (8, 16, {"chunks": 1, "reach": 5}, "pose_reach"),
    ],
)
def test_settings_that_allow_no_draw(window, target, options, field):
    pose = drawing.Pose(**{"chunks": 2} | options)
    assert [problem.field for problem in pose.problems(window, target)] == [field]
