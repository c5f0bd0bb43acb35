"""Where elements lie: each exactly once, in the form that DeepSpeed gives them."""

import pytest
from torch import Size

from tape_ds.checkpoint.engine_layout import divided, joined, sliced

GROUPS = [{"a": Size([5, 7]), "b": Size([3, 3, 3])}, {"c": Size([1]), "d": Size([11])}]


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
@pytest.mark.parametrize("stage", ["joined", "sliced"])
def test_every_element_has_one_place(stage, processes):
    layout = (
        joined(GROUPS, processes, [[3, 0], [0, 0]]) if stage == "joined" else sliced([*enumerate(GROUPS)], processes)
    )
    places = set()
    for name, pieces in layout.of_parameter.items():
        elements = [piece.at + i for piece in pieces for i in range(piece.count)]
        assert elements == list(range(layout.shapes[name].numel()))
        places |= {(piece.rank, piece.flat, piece.start + i) for piece in pieces for i in range(piece.count)}
    assert len(places) == sum(shape.numel() for shape in layout.shapes.values())
    assert all(rank < processes and place < layout.flats[flat].size for rank, flat, place in places)
    assert [list(group) for group in layout.groups()] == [["a", "b"], ["c", "d"]]


def test_padding_fills_whole_ranks():
    """One element on four ranks, two places each: three ranks hold nothing else."""
    layout = joined([{"c": Size([1])}], 4, [[0]])
    assert layout.flats[0].size == 2 and [layout.padding(rank, 0) for rank in range(4)] == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1000, [["a", "b"], ["c", "d"]]), (18, [["a"], ["b"], ["c", "d"]]), (1, [["a"], ["b"], ["c"], ["d"]])],
)
def test_sub_groups_end_with_the_parameter_that_fills_them(size, expected):
    """Two ranks: the slices of a and b have 18 and 14 elements."""
    sub_groups = divided(GROUPS, 2, size)
    assert [list(shapes) for _, shapes in sub_groups] == expected
    assert [group for group, _ in sub_groups] == sorted(group for group, _ in sub_groups)
