"""The cover misses no pair and no triple, and is much smaller than the product."""

from itertools import combinations, product

import pytest

from tests.distributed.covering import cover, meetings

DIMENSIONS = {"size": [2, 4], "heads": ["mha", "gqa", "mqa"], "sequences": [0, 1, 2, 3], "recomputed": [False, True]}


@pytest.mark.parametrize("strength", [2, 3])
def test_all_that_can_meet_do(strength):
    met = {each for one in cover(DIMENSIONS, strength=strength) for each in meetings(one, strength)}
    for names in combinations(DIMENSIONS, strength):
        for values in product(*(DIMENSIONS[name] for name in names)):
            assert tuple(zip(names, values, strict=True)) in met


def test_a_cover_is_small_and_the_same_each_time():
    assert len(cover(DIMENSIONS)) == 12  # 3 x 4, of 48
    assert cover(DIMENSIONS) == cover(DIMENSIONS)
