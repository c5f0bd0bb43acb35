"""What no layout can do."""

from dataclasses import replace

import pytest

from tape_ds.planning import shape
from tape_ds.planning.job import possible
from tests.planning.helpers import job, published


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch": 60},
        {"world": 96, "tensor": 3, "global_batch": 96, "zero": 1},
        {"world": 24, "sequence": 3, "global_batch": 8},
        {"tensor": 2, "zero": 3},
        {"tensor": 2, "zero": 1, "quantised": True},
        {"sequence": 2, "attention_span": 4096.0},
    ],
)
def test_what_a_recipe_refuses_is_not_possible(changes):
    assert not possible(job(**changes))
    assert possible(job(tensor=8, zero=1)) and possible(job(tensor=2, zero=2))


@pytest.mark.parametrize("name", ["attention_bias", "mlp_bias"])
def test_a_bias_after_a_sum_of_parts_is_not_cut(name):
    """A search ranked such layouts, which the run then refused."""
    model = shape.sizes(published("llama2-7b", **{name: True}))
    assert possible(replace(job(zero=1), model=model)) and not possible(
        replace(job(zero=1, tensor=2), model=model)
    )


def test_groups_of_key_heads_may_be_repeated_or_split():
    """70B has 8: 16 ranks repeat each, 4 take two each."""
    for size in (4, 16):
        assert possible(job(model="llama2-70b", world=64, sequence=size, global_batch=64))


def test_short_contexts_by_hand():
    """Of 16,384 tokens with contexts of 4,096 and a stride of 1,024: 12 begin at 0, 1,024 .. 11,264, and the first has
    nothing to compare with."""
    assert job(length=16384, short=(4096, 1024)).read_again == 11 * 5120 / 16384
    assert job(length=16384).read_again == job(length=5120, short=(4096, 1024)).read_again == 0
    assert job(length=1000, short=(4096, 1024)).read_again == 0
