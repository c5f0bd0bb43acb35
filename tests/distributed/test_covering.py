"""The cover misses no pair, and is much smaller than the product."""

from itertools import combinations, product

from tests.distributed.covering import cover

DIMENSIONS = {"size": [2, 4], "heads": ["mha", "gqa", "mqa"], "sequences": [0, 1, 2, 3], "recomputed": [False, True]}


def test_every_two_values_meet_in_few_combinations():
    found = cover(DIMENSIONS)
    assert len(found) == 12  # 3 x 4, of 48
    for one, other in combinations(DIMENSIONS, 2):
        met = {(each[one], each[other]) for each in found}
        assert met == set(product(DIMENSIONS[one], DIMENSIONS[other]))
