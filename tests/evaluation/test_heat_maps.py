"""Heat maps of passkeys and of grids: the table, and the colours of their pictures."""

import pytest
from matplotlib import image

from tape_ds.scoring import heat_maps

YELLOW, BLUE, ORANGE, GREY = (
    (0.996, 0.909, 0.217),
    (0.0, 0.135, 0.305),
    (0.835, 0.369, 0.0),
    (0.8, 0.8, 0.8),
)


def near(path, colour):
    """How many pixels of a picture have a colour."""
    pixels = image.imread(path)[..., :3].reshape(-1, 3)
    return int((abs(pixels - colour).max(axis=1) < 0.02).sum())


def cell(length, depth, correct, ids=0):
    counts = {"trials": 4, "correct": correct, "correct_ids": ids}
    return {"length": length, "depth": depth, **counts, "mean_tokens": length - 10.0}


CELLS = [
    cell(1024, 0.0, 4, ids=3),
    cell(1024, 1.0, 1, ids=1),
    cell(16384, 0.0, 0),
    cell(16384, 1.0, 2, ids=2),
]


def test_the_table_of_passkeys():
    lines = heat_maps.passkey_table(CELLS).splitlines()
    assert lines[0] == "| depth | 1k | 16k |"
    assert lines[2:5] == ["| 0% | 4/4 | 0/4 |", "| 100% | 1/4 | 2/4 |", "| all | 5/8 | 2/8 |"]
    assert lines[5] == "| all, by token ids | 4/8 | 2/8 |"


def test_a_missing_cell_is_a_gap_and_depths_that_round_alike_are_two_rows(tmp_path):
    lines = heat_maps.passkey_table(CELLS[:3]).splitlines()
    assert lines[3:5] == ["| 100% | 1/4 | - |", "| all | 5/8 | 0/4 |"]
    close = [cell(1024, 0.5, 4), cell(1024, 0.5001, 3)]
    assert heat_maps.passkey_table(close).splitlines()[2:4] == ["| 50% | 4/4 |", "| 50% | 3/4 |"]
    for cells in (CELLS[:3], close):
        heat_maps.draw_passkeys(cells, tmp_path / "a.png", title="$x^ $y", native_length=None)


def grid(tmp_path, reach, samples=lambda i, j: 10, right=lambda i, j: True):
    """The picture of an evaluation that is right where both operands are at most ``reach`` long."""
    sizes = [(i, j) for i in range(1, 7) for j in range(1, 7)]
    cells = []
    for i, j in sizes:
        correct = samples(i, j) if max(i, j) <= reach and right(i, j) else 0
        cells.append({"first": i, "second": j, "samples": samples(i, j), "correct": correct})
    means = {"whole": {"value": 0.5}, "beyond": {"value": None}}
    figures = {"task": "addition", "cells": cells, "trained": [3, 3], "sizes": ["first", "second"]}
    return heat_maps.draw_generated(
        {**figures, "means": means}, tmp_path / "map.png", "a title, no $ formula $x^"
    )


def test_cells_of_a_grid_are_bright_if_right_and_grey_if_unasked(tmp_path):
    path = grid(tmp_path, 3)
    assert near(path, YELLOW) / near(path, BLUE) == pytest.approx(1 / 3, abs=0.05), (
        "a quarter of the grid"
    )
    path = grid(tmp_path, 6, samples=lambda i, j: 10 * (i < 4))
    assert near(path, GREY) == pytest.approx(near(path, YELLOW), rel=0.1)


def test_the_first_operand_goes_upwards(tmp_path):
    path = grid(tmp_path, 6, right=lambda i, j: i == 6 and j > 3)
    pixels = image.imread(path)[:, :450, :3]  # without the colour bar
    down, across = (abs(pixels - YELLOW).max(axis=-1) < 0.02).nonzero()
    assert down.max() < pixels.shape[0] / 2 and across.min() > 200
