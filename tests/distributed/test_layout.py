"""Arithmetic on ranks, and which heads can be shared."""

import pytest

from tape_ds.distributed.layout import Layout, check_heads


def test_neighbours_share_sequences():
    layout = Layout(8, 4)
    assert layout.data == 2
    assert layout.groups() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [layout.data_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert Layout(3).data == 3


def test_neighbours_share_a_model():
    layout = Layout(4, tensor=2)
    assert (layout.data, layout.ways, layout.groups()) == (2, 2, [[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="not both"):
        Layout(4, 2, 2)


@pytest.mark.parametrize("size", [0, 3, 8])
def test_groups_must_be_whole(size):
    with pytest.raises(ValueError, match="groups of"):
        Layout(4, size)


@pytest.mark.parametrize(
    "heads, key_value_heads, fitting",
    [
        (32, 8, [1, 2, 4, 8, 16, 32]),
        (9, 3, [1, 3, 9]),
        (12, 4, [1, 2, 4, 12]),  # six would need two thirds of a group
    ],
)
def test_heads_are_shared_by_whole_groups_or_parts_of_one(heads, key_value_heads, fitting):
    found = [
        size for size in range(1, heads + 1) if not list(check_heads(heads, key_value_heads, size))
    ]
    assert found == fitting


def test_each_stage_shards_one_thing_more():
    assert [Layout(8, zero=2).shards(stage) for stage in (1, 2, 3)] == [8, 8, 1]
    assert Layout(8).shards(1) == 1
    # ZeRO shards over the ranks that share sequences too; those that share layers have different parts
    assert Layout(64, 4).shards() == 64 and Layout(64, tensor=2).shards() == 32
