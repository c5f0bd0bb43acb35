"""Metrics: known peaks only, honest N/A and NaN, one line with every field in its place."""

import mmap

import pytest
import torch

from tape_ds import numbers
from tape_ds.distributed import processes
from tape_ds.training import metrics


def test_mfu_by_hand(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    # 7e9 parameters at 6 FLOPs each, 3,000 tokens/s on each of 8 devices: 3000 * 42e9 / 312e12 = 40.4 %
    assert metrics.model_flops_utilisation(24_000, 42e9, 8, torch.device("cuda")) == pytest.approx(
        0.40385, rel=1e-4
    )


def fresh_memory(mebibytes):
    """Pages that the process did not have before, all touched: a tensor may get memory that was freed before."""
    pages = mmap.mmap(-1, mebibytes * 2**20)
    pages.write(b"x" * len(pages))
    return pages


def test_the_peak_is_of_what_came_after_the_reset():
    """Loading and scoring need more than training does; what they needed is not training's."""
    cpu = torch.device("cpu")
    early = fresh_memory(64)
    with_early = processes.peak_memory_bytes(cpu)
    early.close()
    processes.reset_peak_memory(cpu)
    after = processes.peak_memory_bytes(cpu)
    assert after <= with_early - 60 * 2**20
    late = fresh_memory(32)
    assert processes.peak_memory_bytes(cpu) >= after + 30 * 2**20, (
        "it is still known when the memory is free again"
    )
    late.close()


def test_an_unknown_duration_is_no_number():
    assert (numbers.duration(None), numbers.duration(float("nan")), numbers.duration(3661)) == (
        "N/A",
        "N/A",
        "1:01:01",
    )
