"""``t5``: buckets exact at every border, and a table that reaches any distance."""

import math

import numpy as np
import pytest
import torch

from tape_ds import encodings
from tape_ds.encodings.t5 import buckets_by_distance
from tests.models.helpers import tiny_model

SIZES = [
    (2, 2),
    (2, 9),
    (3, 5),
    (4, 3),
    (8, 20),
    (32, 128),
    (33, 40),
    (64, 128),
    (64, 33),
    (64, 1000),
]


def bucket(distance, buckets, farthest):
    """The definition in whole numbers: floor(ln(r / e) / ln(D / e) (B - e)) is the largest j whose border is reached,
    and r >= e (D / e)^(j / (B - e)) says r^(B - e) e^j >= D^j e^(B - e)."""
    exact = buckets // 2
    if distance < exact:
        return distance
    grown = buckets - exact
    j = 0
    while j < grown and distance**grown * exact ** (j + 1) >= farthest ** (j + 1) * exact**grown:
        j += 1
    return min(exact + j, buckets - 1)


@pytest.mark.parametrize("buckets, farthest", SIZES)
def test_every_distance_has_its_bucket(buckets, farthest):
    expected = [bucket(distance, buckets, farthest) for distance in range(farthest + 1)]
    assert buckets_by_distance(buckets, farthest).tolist() == expected


@pytest.mark.parametrize("buckets, farthest", [(32, 128), (64, 128), (64, 256)])
def test_buckets_are_those_of_the_published_fp32_arithmetic(buckets, farthest):
    """At a border an fp32 logarithm may fall short of the whole number; at the sizes in use it does not."""
    r, exact = torch.arange(farthest + 50), buckets // 2
    grown = exact + (
        torch.log(r.float() / exact) / math.log(farthest / exact) * (buckets - exact)
    ).to(torch.long)
    theirs = torch.where(r < exact, r, grown.clamp(max=buckets - 1)).numpy()
    mine = buckets_by_distance(buckets, farthest)
    np.testing.assert_array_equal(mine, theirs[: farthest + 1])
    assert set(theirs[farthest:]) == {mine[-1]} == {buckets - 1}


@pytest.mark.parametrize("heads", ["mha", "gqa", "mqa"])
def test_the_bias_is_the_table_s_entry(heads):
    """Per query head; a key ahead of its query (never seen) counts as distance 0; the last bucket has no end."""
    layer = tiny_model(heads, "t5").model.layers[1].position
    places = [0, 1, 4, 1000, 7]
    marks = torch.tensor(places)[None, :, None]
    bias = layer.score_bias((marks, marks), None)
    block = bias.of(slice(None), slice(None))
    assert bias.learned and block.dtype == torch.float32
    for h in range(block.shape[1]):
        for t, n in enumerate(places):
            for s, m in enumerate(places):
                expected = layer.table.weight[bucket(min(max(n - m, 0), 20), 8, 20), h]
                assert block[0, h, t, s] == expected
                one = bias.element(
                    bias.query_marks[0, 0, t, 0], bias.key_marks[0, 0, s, 0], torch.tensor(h)
                )
                assert one == expected


@pytest.mark.parametrize(
    "options, field", [({"buckets": 1}, "buckets"), ({"max_distance": 32}, "max_distance")]
)
def test_tables_without_room_for_both_halves_are_refused(options, field):
    (problem,) = encodings.check_options("t5", options)
    assert problem.field == f"position_options.{field}"
    assert not encodings.check_options("t5", {"max_distance": 33})
