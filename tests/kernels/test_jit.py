"""Where Triton's kernels run, and why they do not elsewhere."""

import shutil
import sysconfig
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from tape_ds.kernels import jit, position_mix_triton, rotate_triton


@pytest.fixture(autouse=True)
def forget_devices():
    """What a pretended GPU was found to be stays in its own test."""
    jit.capability.cache_clear()
    yield
    jit.capability.cache_clear()


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A function that pretends to a GPU of some capability and shared memory (KiB) where kernels are compiled."""

    def pretend(major, minor, shared):
        properties = SimpleNamespace(shared_memory_per_block_optin=shared << 10)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    monkeypatch.setattr(jit, "triton", object())
    monkeypatch.setattr(jit, "INTERPRETED", False)
    monkeypatch.setattr(jit, "no_compiler", lambda: None)
    return pretend


def tensor(device, dtype):
    """What ``why_not`` reads of a tensor, on a device that need not be here."""
    return SimpleNamespace(
        device=torch.device(device), dtype=dtype, is_cuda=device.startswith("cuda")
    )


# A100, Orin, B200
@pytest.mark.parametrize(
    ("gpu", "column"), [((8, 0, 163), 80), ((8, 7, 163), 80), ((10, 0, 227), 90)]
)
def test_a_gpu_takes_the_newest_column_that_is_not_newer_than_itself(on_a_gpu, gpu, column):
    on_a_gpu(*gpu)
    assert jit.capability(torch.device("cuda", 0)) == column


@pytest.mark.parametrize("gpu", [(7, 5, 64), (8, 9, 99)])  # T4; L40S
def test_a_gpu_without_a_column_is_refused_before_anything_runs(on_a_gpu, gpu):
    on_a_gpu(*gpu)
    with pytest.raises(ValueError, match=f"this GPU has {gpu[0]}.{gpu[1]} and {gpu[2]} KiB"):
        jit.capability(torch.device("cuda", 0))
    assert jit.why_not(tensor("cuda:0", torch.bfloat16)) is not None


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cuda:0", torch.bfloat16, None),
        ("cpu", torch.float16, "need a CUDA device, not 'cpu'"),
        ("cuda:0", torch.float32, "for fp16 and bf16 on a GPU, not float32"),
    ],
)
def test_halves_run_on_a_gpu(on_a_gpu, device, dtype, words):
    on_a_gpu(9, 0, 227)
    found = jit.why_not(tensor(device, dtype))
    assert found is None if words is None else words in found


@pytest.fixture
def machine(monkeypatch):
    """A machine whose compiler has not been looked for."""
    monkeypatch.delenv("CC", raising=False)
    jit.no_compiler.cache_clear()
    yield monkeypatch
    jit.no_compiler.cache_clear()


def test_a_missing_compiler_or_header_is_known(machine, tmp_path):
    if shutil.which("gcc"):
        with machine.context() as changed:
            changed.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
            assert f"{tmp_path} has no Python.h" in jit.no_compiler()
    jit.no_compiler.cache_clear()
    machine.setenv("PATH", "")
    assert "install gcc" in jit.no_compiler()
    jit.no_compiler.cache_clear()
    machine.setenv("CC", "/no/such/cc")
    assert "/no/such/cc does not run" in jit.no_compiler()


def test_without_a_compiler_the_plain_forms_answer(on_a_gpu, monkeypatch):
    on_a_gpu(9, 0, 227)
    x = mock.Mock(
        is_cuda=True, dtype=torch.bfloat16, device=torch.device("cuda", 0), shape=(1, 4, 8, 64)
    )
    x.numel.return_value = 2048
    given = mock.Mock(
        moved=x, gate=None, **{"sizes.return_value": (1, 4, 8, 64), "heads.return_value": 4}
    )
    given.wide.return_value = torch.float32
    assert rotate_triton.fits(x) and position_mix_triton.fits(given)
    monkeypatch.setattr(jit, "no_compiler", lambda: "no compiler here")
    assert not rotate_triton.fits(x) and not position_mix_triton.fits(given)
