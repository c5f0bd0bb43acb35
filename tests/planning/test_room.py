"""Whether a job fits, and the remedy where it does not."""

import pytest

from tape_ds.planning import room
from tests.planning.helpers import FROZEN, job


def test_what_fits_has_no_problem():
    assert room.check(job(trained=FROZEN, checkpoint_layers=1)) == []


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"zero": 1}, "deepspeed: zero"),
        ({"zero": 3, "micro_batch": 4}, "per_device_train_batch_size: 1"),
        ({"zero": 3, "length": 32_768, "global_batch": 8}, "activation_checkpointing: true"),
        ({"zero": 3, "length": 131_072, "global_batch": 8}, "sequence_parallel_size"),
        ({"model": "llama2-70b", "gpus": 8, "gpu": "a100-40"}, "more GPUs"),
    ],
)
def test_the_remedy_is_what_would_fit(changes, remedy):
    (found,) = room.check(job(**changes))
    assert found.field == "memory" and "GiB would be needed" in found.wrong
    assert remedy in found.remedy and "--force" in found.remedy


def test_a_remedy_is_never_what_a_run_refuses():
    """Tensor parallelism takes no ZeRO-3: a higher stage is no remedy for it."""
    (found,) = room.check(job(model="llama2-70b", gpus=64, tensor=8, zero=1, gpu="a100-40"))
    assert "zero3" not in found.remedy or "tensor_parallel_size: 1" in found.remedy


def test_force_and_a_cpu_stop_nothing():
    assert room.check(job(zero=1), force=True) == [] and room.check(job(zero=1, gpu=None)) == []


def test_the_hosts_memory_has_an_end_as_well():
    found = room.check(job(model="llama2-70b", gpus=8, zero=3, offload_optimizer="cpu", gpu="a100-80"))
    assert "offload" in [each.field for each in found]
