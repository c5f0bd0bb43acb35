"""GPUs by name, and their peaks."""

import pytest

from tape_ds.errors import UserError
from tape_ds.planning import hardware

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
    """And its peak is found by that name, too."""
    found = hardware.of_device(CUDA_NAMES[name], 1e9)
    assert found.name == name and found.memory == 1e9
    assert found.peak == hardware.peak_flops(CUDA_NAMES[name])


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 D", "NVIDIA L40", ""])
def test_another_card_is_nobody(name):
    """An unknown GPU is never taken for a known one."""
    assert hardware.of_device(name, 1e9) is None


def test_an_unknown_name_suggests_a_known_one():
    with pytest.raises(UserError, match="a100-80"):
        hardware.find("a100")


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L4", 121e12),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("Tesla V100-PCIE-32GB", 112e12),
        ("NVIDIA A10", 125e12),
    ],
)
def test_peak_of_known_devices(name, peak):
    assert hardware.peak_flops(name) == peak


@pytest.mark.parametrize("name", ["NVIDIA GeForce GTX 1080", "NVIDIA A10G", "NVIDIA A1000", "MIG A100", "", "cpu"])
def test_an_unknown_device_has_no_peak(name):
    assert hardware.peak_flops(name) is None
