"""Heat maps of grids: what is right is bright, what was trained is framed, and every grid has its panel."""

import pytest
from matplotlib import image

from evaluation import grid_map
from evaluation.grid_map import Grid
from tape_ds.scoring.arithmetic import Cell

YELLOW, BLUE, ORANGE, GREY = (0.996, 0.909, 0.217), (0.0, 0.135, 0.305), (0.835, 0.369, 0.0), (0.8, 0.8, 0.8)


def grid(reach, last=6, trained=(3, 3), samples=lambda i, j: 10):
    cells = [
        Cell(i, j, samples(i, j), samples(i, j) * (max(i, j) <= reach))
        for i in range(1, last + 1)
        for j in range(1, last + 1)
    ]
    return Grid("one", cells, trained, ("first", "second"))


def drawn(tmp_path, *grids):
    """How much of the picture has a colour."""
    pixels = image.imread(grid_map.draw(grids, tmp_path / "map.png", "a title, no $ formula $x^"))[..., :3]

    def near(colour):
        return int((abs(pixels - colour).max(axis=-1) < 0.02).sum())

    return near, pixels.shape


def test_cells_are_bright_as_they_are_right(tmp_path):
    near, _ = drawn(tmp_path, grid(3))
    assert near(YELLOW) / near(BLUE) == pytest.approx(1 / 3, abs=0.05), "a quarter of the grid; the bar has little"
    near, _ = drawn(tmp_path, grid(6))
    assert near(YELLOW) > 100 * near(BLUE)


def test_what_was_trained_is_framed_as_far_as_the_grid_goes(tmp_path):
    near, _ = drawn(tmp_path, grid(0))
    large, _ = drawn(tmp_path, grid(0, trained=(6, 6)))
    beyond, _ = drawn(tmp_path, grid(0, trained=(9, 9)))
    assert near(ORANGE) > 500 and large(ORANGE) == beyond(ORANGE) > 1.5 * near(ORANGE)


def test_a_cell_of_which_nothing_was_asked_is_grey(tmp_path):
    near, _ = drawn(tmp_path, grid(6, samples=lambda i, j: 10 * (i < 4)))
    assert near(GREY) == pytest.approx(near(YELLOW), rel=0.1)


@pytest.mark.parametrize(("count", "across", "down"), [(1, 1, 1), (3, 3, 1), (4, 4, 1), (6, 4, 2)])
def test_grids_stand_side_by_side(tmp_path, count, across, down):
    near, (height, width, _) = drawn(tmp_path, *[grid(3)] * count)
    _, (one_high, one_wide, _) = drawn(tmp_path, grid(3))
    assert (width > one_wide * across * 0.6, height > one_high * down * 0.8) == (True, True)
    assert near(YELLOW) > count * 20_000


def test_a_stored_grid_is_drawn_again():
    figures = {
        "cells": [{"first": 1, "second": 2, "samples": 4, "correct": 1, "wrong": [{"prompt": "1+21="}]}],
        "trained": [1, 1],
        "sizes": ["a", "b"],
        "task": "addition",
    }
    found = Grid.of("rope", figures)
    assert found == Grid("rope", [Cell(1, 2, 4, 1)], (1, 1), ("a", "b"))
    assert found.means["beyond"] == 0.25 and found.means["trained"] is None


@pytest.mark.parametrize("grids", [[], [Grid("one", [], (1, 1), ("a", "b"))]])
def test_nothing_to_draw(tmp_path, grids):
    with pytest.raises(ValueError, match="no cells"):
        grid_map.draw(grids, tmp_path / "map.png", "none")


@pytest.mark.parametrize(("share", "text"), [(0.25, "25.0%"), (1.0, "100.0%"), (None, "N/A")])
def test_means_are_written_as_per_cents(share, text):
    assert grid_map.percent(share) == text
