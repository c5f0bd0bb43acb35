"""Weights of data sources: which shares they mean, and what is wrong with a list."""

import math

import pytest

from tape_ds.data.sources import check_lists, weights

GOOD = {"source": "stdlib:ast.py", "weight": 1}
OTHER = {"source": "stdlib:ssl.py", "weight": 3.0}


def test_only_proportions_count():
    assert weights.shares_of([GOOD, OTHER]) == [0.25, 0.75]
    assert weights.specs_of([GOOD, OTHER]) == ["stdlib:ast.py", "stdlib:ssl.py"]
    assert weights.described([GOOD, OTHER]) == "25 % stdlib:ast.py, 75 % stdlib:ssl.py"
    assert check_lists([GOOD, OTHER], []) == []


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, True, "1"])
def test_a_weight_is_a_number_above_0(weight):
    (problem,) = check_lists([GOOD, OTHER | {"weight": weight}], [])
    assert (problem.field, problem.wrong) == ("train_data", "its weight is not a number above 0")


@pytest.mark.parametrize(
    ("entries", "value", "wrong"),
    [
        ([GOOD, "stdlib:ssl.py"], "stdlib:ssl.py", "no weight"),
        ([GOOD, OTHER | {"split": "x"}], OTHER | {"split": "x"}, "not a source with a weight"),
        ([GOOD, OTHER, GOOD], "stdlib:ast.py", "more than once"),
        ([GOOD, OTHER | {"source": "sdtlib"}], "sdtlib", "unknown kind"),
    ],
)
def test_a_mistake_is_named_alone(entries, value, wrong):
    (problem,) = check_lists(entries, [])
    assert problem.field == "train_data" and problem.value == value and wrong in problem.wrong
