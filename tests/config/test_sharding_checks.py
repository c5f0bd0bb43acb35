"""Offload and ZeRO++ are refused at the start where they would do nothing, or fail once a model is loaded."""

import pytest
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder

from tape_ds.config import deepspeed_config


def problems(world_size=1, stage=3, use_cpu=None, **zero):
    """Problems of this ``zero_optimization``, as {field's last name: text}."""
    config = {"zero_optimization": {"stage": stage} | zero}
    wrong = deepspeed_config.check_sharding(config, world_size, bool(use_cpu))
    return {found.field.rpartition(".")[2]: str(found) for found in wrong}


@pytest.fixture
def on_cuda(monkeypatch):
    """A machine with a GPU, as far as the checks ask."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)


@pytest.fixture
def with_libaio(monkeypatch):
    """A machine that has it, as far as the checks ask."""
    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda self, verbose: True)


@pytest.mark.parametrize(
    "size, world, reason",
    [
        (1, 4, None),
        (2, 4, None),
        (4, 4, "one group"),
        (8, 4, "one group"),
        (3, 4, "does not divide"),
        (8, 1, None),
    ],
)
def test_hpz(size, world, reason):
    """A recipe that is looked at in one process may be meant for many."""
    found = problems(world, zero_hpz_partition_size=size)
    assert (reason is None and found == {}) or reason in found["zero_hpz_partition_size"]


@pytest.mark.parametrize(
    "key", ["zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients"]
)
def test_nothing_of_it_is_at_another_stage(key, on_cuda):
    assert "do nothing at stage" in problems(4, 2, **{key: 2 if "size" in key else True})[key]


@pytest.mark.parametrize(
    "how, key",
    [
        ("no GPU", "zero_quantized_weights"),
        ("use_cpu", "zero_quantized_gradients"),
        ("DS_ACCELERATOR", "zero_quantized_weights"),
    ],
)
def test_quantised_communication_needs_a_gpu(how, key, monkeypatch):
    """On a CPU the one fails in the first step, the other is taken and does nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: how != "no GPU")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    if how == "DS_ACCELERATOR":
        monkeypatch.setenv(how, "cpu")
    assert "CUDA" in problems(4, use_cpu=how == "use_cpu", **{key: True})[key]


def test_quantised_communication_on_one(on_cuda):
    assert problems(4, zero_quantized_weights=True, zero_quantized_gradients=True) == {}


def test_frozen_weights_are_never_quantised_here(on_cuda):
    """DeepSpeed quantises those that are frozen when it shards them; here that comes later."""
    found = problems(4, zero_quantized_nontrainable_weights=True)
    assert "load_in_4bit" in found["zero_quantized_nontrainable_weights"]


def test_a_disk_without_libaio(tmp_path, monkeypatch):
    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda self, verbose: False)
    found = problems(offload_optimizer={"device": "nvme", "nvme_path": str(tmp_path)})
    assert set(found) == {"device"} and "apt install libaio-dev" in found["device"]


@pytest.mark.parametrize("block", ["offload_param", "offload_optimizer"])
def test_a_folder_on_the_disk(block, tmp_path, with_libaio):
    assert problems(**{block: {"device": "cpu"}}) == {}
    assert problems(**{block: {"device": "nvme", "nvme_path": str(tmp_path)}}) == {}
    assert (
        "no such folder"
        in problems(**{block: {"device": "nvme", "nvme_path": str(tmp_path / "x")}})["nvme_path"]
    )


def test_only_stage_3_writes_to_a_disk(tmp_path, with_libaio):
    found = problems(stage=2, offload_optimizer={"device": "nvme", "nvme_path": str(tmp_path)})
    assert set(found) == {"device"} and "never writes to a disk" in found["device"]
