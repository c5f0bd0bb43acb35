"""The cover misses no pair, and is much smaller than the product."""

from itertools import product

from tests.parallel.pairwise import cover, pairs

DIMENSIONS = {"size": [2, 4], "heads": ["mha", "gqa", "mqa"], "sequences": [0, 1, 2, 3], "recomputed": [False, True]}


def test_every_pair_meets():
    met = {pair for one in cover(DIMENSIONS) for pair in pairs(one)}
    names = list(DIMENSIONS)
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            for values in product(DIMENSIONS[name], DIMENSIONS[other]):
                assert ((name, values[0]), (other, values[1])) in met


def test_it_is_as_small_as_the_two_largest_dimensions_allow():
    assert len(cover(DIMENSIONS)) == 12  # 3 x 4, of 48


def test_it_is_the_same_each_time():
    assert cover(DIMENSIONS) == cover(DIMENSIONS)
