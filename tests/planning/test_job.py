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
        ({"tensor": 2, "zero": 3}, "tensor_parallel_size"),
        ({"tensor": 2, "zero": None}, "tensor_parallel_size"),
        ({"tensor": 2, "sequence": 2, "zero": 1}, "tensor_parallel_size"),
        ({"tensor": 2, "zero": 1, "quantised": True}, "tensor_parallel_size"),
        ({"sequence": 2, "attention_span": 4096.0}, "sequence_parallel_size"),
    ],
)
def test_what_cannot_be_is_named(changes, field):
    assert field in [each.field for each in problems(job(**changes))]


def test_tensor_parallelism_goes_with_zero_1_and_2():
    assert problems(job(tensor=8, zero=1)) == problems(job(tensor=2, zero=2)) == []


def test_groups_of_key_heads_may_be_repeated_or_split():
    """70B has 8: 16 ranks repeat each, 4 take two each."""
    for size in (4, 16):
        assert problems(job(model="llama2-70b", gpus=64, sequence=size, global_batch=64)) == []


def test_tokens_and_accumulation():
    asked = job(gpus=64, sequence=4, micro_batch=2, global_batch=64)
    assert asked.layout.replicas == 16 and asked.tokens == 2 * 2048 and asked.accumulation == 2
