"""What no layout can do."""

import pytest

from tape_ds.planning.job import problems
from tests.planning.helpers import job


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": 12, "tensor": 8}, "gpus"),
        ({"global_batch": 60}, "global_batch_size"),
        ({"gpus": 96, "tensor": 3, "global_batch": 96}, "tensor_parallel_size"),
        ({"gpus": 24, "sequence": 3}, "sequence_parallel_size"),
        ({"offload_weights": "cpu", "zero": 2}, "offload_weights"),
        ({"offload_optimizer": "cpu", "zero": None}, "offload_optimizer"),
    ],
)
def test_numbers_that_do_not_divide_are_named(changes, field):
    assert field in [each.field for each in problems(job(**changes))]


def test_groups_of_key_heads_may_be_repeated_or_split():
    """70B has 8: 16 ranks repeat each, 4 take two each."""
    for size in (4, 16):
        assert problems(job(model="llama2-70b", gpus=64, sequence=size, global_batch=64)) == []


def test_tokens_and_accumulation():
    asked = job(gpus=64, sequence=4, micro_batch=2, global_batch=64)
    assert asked.layout.replicas == 16 and asked.tokens == 2 * 2048 and asked.accumulation == 2
