"""GPUs by name, and their figures against those that the metrics divide by."""

import pytest

from tape_ds.errors import UserError
from tape_ds.planning import hardware
from tape_ds.training import metrics

CUDA_NAMES = {
    "a100-80": "NVIDIA A100-SXM4-80GB",
    "a100-40": "NVIDIA A100-SXM4-40GB",
    "h100-80": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "v100-32": "Tesla V100-SXM2-32GB",
    "rtx4090": "NVIDIA GeForce RTX 4090",
    "l40s": "NVIDIA L40S",
    "gh200": "NVIDIA GH200 480GB",
    "b200": "NVIDIA B200",
}


@pytest.mark.parametrize("name", hardware.GPUS)
def test_a_card_is_known_by_what_cuda_calls_it(name):
    """And has the one peak that the metrics of a run divide by."""
    found = hardware.of_device(CUDA_NAMES[name], 1e9)
    assert found.name == name and found.memory == 1e9
    assert found.peak == metrics.peak_flops(CUDA_NAMES[name])


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 D", "NVIDIA L40", ""])
def test_another_card_is_nobody(name):
    """An unknown GPU is never taken for a known one."""
    assert hardware.of_device(name, 1e9) is None


def test_an_unknown_name_suggests_a_known_one():
    with pytest.raises(UserError, match="a100-80"):
        hardware.find("a100")
