"""All processes refuse a base whose weights are no numbers, whichever of them holds these."""

import math

import pytest

from tests.distributed.weight_cases import refusal

BOTH = "weights that are not finite, NaN or infinite: first.weight, second.bias"


@pytest.mark.parametrize("sharded", [False, True])
def test_whole_and_partitioned_weights_are_looked_at(group, sharded):
    """Under ZeRO-3 the tensors were empty on every rank, and a damaged base was trained for as long as asked."""
    damaged = [("first.weight", math.nan), ("second.bias", -math.inf)]
    assert group.run(refusal, damaged, sharded) == [BOTH] * group.ranks
    assert group.run(refusal, [], sharded) == [None] * group.ranks


def test_ranks_that_hold_other_numbers_refuse_together(group):
    """The one with the damaged column ended alone, and the others waited for it."""
    assert set(group.run(refusal, [("first.weight", math.inf)], False, 2)) == {
        BOTH.replace(", second.bias", "")
    }
