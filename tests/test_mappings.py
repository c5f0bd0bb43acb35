"""Copies of mappings."""

from tape_ds.mappings import without


def test_names_are_left_out_of_a_copy():
    values = {"a": 1, "b": 2}
    assert without(values, ["b", "absent"]) == {"a": 1} and values == {"a": 1, "b": 2}
