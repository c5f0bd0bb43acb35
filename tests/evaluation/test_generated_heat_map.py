"""Heat maps of grids: right answers are bright, trained lengths are framed, unasked cells are grey."""

import pytest
from matplotlib import image

from tape_ds.scoring import heat_maps

YELLOW, BLUE, ORANGE, GREY = (0.996, 0.909, 0.217), (0.0, 0.135, 0.305), (0.835, 0.369, 0.0), (0.8, 0.8, 0.8)


def grid(reach, last=6, trained=(3, 3), samples=lambda i, j: 10):
    """The figures of an evaluation that is right where both operands are at most ``reach`` long."""
    cells = [
        {"first": i, "second": j, "samples": samples(i, j), "correct": samples(i, j) * (max(i, j) <= reach)}
        for i in range(1, last + 1)
        for j in range(1, last + 1)
    ]
    means = {"whole": {"value": 0.5}, "beyond": {"value": None}}
    return {"task": "addition", "cells": cells, "trained": list(trained), "sizes": ["first", "second"], "means": means}


def drawn(tmp_path, figures):
    """How much of the picture has a colour."""
    pixels = image.imread(heat_maps.draw_generated(figures, tmp_path / "map.png", "a title, no $ formula $x^"))[..., :3]
    return lambda colour: int((abs(pixels - colour).max(axis=-1) < 0.02).sum())


def test_cells_are_bright_as_they_are_right(tmp_path):
    near = drawn(tmp_path, grid(3))
    assert near(YELLOW) / near(BLUE) == pytest.approx(1 / 3, abs=0.05), "a quarter of the grid; the bar has little"
    near = drawn(tmp_path, grid(6))
    assert near(YELLOW) > 100 * near(BLUE)


def test_what_was_trained_is_framed_as_far_as_the_grid_goes(tmp_path):
    near = drawn(tmp_path, grid(0))
    large = drawn(tmp_path, grid(0, trained=(6, 6)))
    beyond = drawn(tmp_path, grid(0, trained=(9, 9)))
    assert near(ORANGE) > 500 and large(ORANGE) == beyond(ORANGE) > 1.5 * near(ORANGE)


def test_a_cell_of_which_nothing_was_asked_is_grey(tmp_path):
    near = drawn(tmp_path, grid(6, samples=lambda i, j: 10 * (i < 4)))
    assert near(GREY) == pytest.approx(near(YELLOW), rel=0.1)
