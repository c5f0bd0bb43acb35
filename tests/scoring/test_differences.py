"""Lines as differences from one of them, and the scales of such pictures."""

import math

import pytest

from tape_ds.scoring import differences

LINES = {"base": {0: 2.0, 1: 8.0}, "own": {0: 1.5, 1: 1.0, 2: 3.0}, "broken": {0: 1.0, 1: math.nan}}


def test_lines_less_one_of_them():
    found = differences.less_reference(LINES, "base")
    assert found["base"] == {0: 0.0, 1: 0.0} and found["own"] == {0: -0.5, 1: -7.0}


def test_lines_less_the_median_of_the_finite_ones():
    found = differences.less_reference(LINES, None)
    assert found["own"] == {0: 0.0, 1: -3.5, 2: 0.0} and found["broken"][0] == -0.5


def test_one_exploding_line_does_not_set_the_height():
    lines = {"good": {0: 0.02, 1: -0.02, 2: 0.02}, "broken": {0: 0.02, 1: math.nan, 2: 5.0}}
    assert differences.height(lines) == pytest.approx(0.03)
    assert differences.height({}) == differences.height({"one": {0: 0.0, 1: 1e-6}}) == 0.01


@pytest.mark.parametrize(("most", "step"), [(5, 1), (15360, 2048), (16384, 2048), (16385, 4096)])
def test_ticks_are_at_most_nine_multiples_of_a_power_of_two(most, step):
    assert differences.tick_step(most) == step and most / step <= 8
