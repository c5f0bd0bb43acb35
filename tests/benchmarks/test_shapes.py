"""Labels are read back as what they were made from."""

import pytest

from benchmarks import shapes


@pytest.mark.parametrize(
    "shape, sizes",
    [
        (shapes.Attention(1, 32, 8, 8192, 128), {"B": 1, "H": 32, "G": 8, "T": 8192, "K": 128}),
        (shapes.Decode(2, 9, 3, 8192, 64), {"B": 2, "H": 9, "G": 3, "T": 1, "S": 8192, "K": 64}),
        (shapes.Mix(8, 12, 12, 48, 1024, 64), {"B": 8, "H": 12, "G": 12, "I": 48, "T": 1024, "K": 64}),
        (shapes.Model("155M", 6, 1, 2048), {"L": 6, "B": 1, "T": 2048}),
    ],
)
def test_labels_are_read_back(shape, sizes):
    assert shapes.parse(shape.label) == sizes


def test_no_two_shapes_of_a_group_share_a_label():
    groups = (shapes.ATTENTION, shapes.DECODE, shapes.POSITION_MIX, shapes.ROTATE, shapes.LAYER, shapes.STEP)
    for group in (*groups, shapes.RECIPE, shapes.FORMULATION):
        for listed in group.values():
            assert len({shape.label for shape in listed}) == len(listed)
