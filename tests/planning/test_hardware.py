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


def test_a_card_is_known_by_what_cuda_calls_it():
    """And its peak is found by that name, too; an unknown GPU is never taken for a known one."""
    for name in hardware.GPUS:
        found = hardware.of_device(CUDA_NAMES[name], 1e9)
        assert found.name == name and found.memory == 1e9
        assert found.peak == hardware.peak_flops(CUDA_NAMES[name])
    for other in (
        "NVIDIA H200 NVL",
        "NVIDIA H100 PCIe",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA L40",
        "",
    ):
        assert hardware.of_device(other, 1e9) is None
    assert (
        hardware.peak_flops("NVIDIA H100 PCIe") == 756e12
        and hardware.peak_flops("NVIDIA A10G") is None
    )
    with pytest.raises(UserError, match="a100-80"):
        hardware.find("a100")
