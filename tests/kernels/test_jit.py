"""Where Triton's kernels run, and why they do not elsewhere."""

import shutil
import sys
import sysconfig
from pathlib import Path
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
    return SimpleNamespace(device=torch.device(device), dtype=dtype, is_cuda=device.startswith("cuda"))


def test_the_suite_interprets_kernels_exactly_where_there_is_no_gpu():
    pytest.importorskip("triton")
    assert torch.cuda.is_available() != jit.INTERPRETED


@pytest.mark.parametrize(
    ("gpu", "column"),
    [
        ((8, 0, 163), 80),  # A100
        ((8, 7, 163), 80),  # Orin
        ((9, 0, 227), 90),  # H100
        ((10, 0, 227), 90),  # B200
    ],
)
def test_a_gpu_takes_the_newest_column_that_is_not_newer_than_itself(on_a_gpu, gpu, column):
    on_a_gpu(*gpu)
    assert jit.capability(torch.device("cuda", 0)) == column


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ((7, 5, 64), "has 7.5 and 64 KiB"),  # T4
        ((8, 9, 99), "has 8.9 and 99 KiB"),  # L40S
        ((12, 0, 99), "has 12.0 and 99 KiB"),  # RTX 5090
    ],
)
def test_a_gpu_without_a_column_is_named_before_anything_runs(on_a_gpu, gpu, words):
    on_a_gpu(*gpu)
    with pytest.raises(ValueError, match=words) as raised:
        jit.capability(torch.device("cuda", 0))
    assert "8.0 or newer and 163 KiB" in str(raised.value)
    assert jit.why_not(tensor("cuda:0", torch.bfloat16)) == str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_run_on_a_gpu(on_a_gpu, dtype):
    on_a_gpu(9, 0, 227)
    assert jit.why_not(tensor("cuda:0", dtype)) is None


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cpu", torch.float16, "need a CUDA device, not 'cpu'"),
        ("meta", torch.bfloat16, "need a CUDA device, not 'meta'"),
        ("cuda:0", torch.float32, "for fp16 and bf16 on a GPU, not float32"),
        ("cuda:0", torch.float64, "for fp16 and bf16 on a GPU, not float64"),
    ],
)
def test_what_does_not_run_on_a_gpu_says_why(on_a_gpu, device, dtype, words):
    on_a_gpu(9, 0, 227)
    assert words in jit.why_not(tensor(device, dtype))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("gpu", [(9, 0, 227), (8, 9, 99)])
def test_a_compiled_graph_takes_the_answer_about_a_gpu(on_a_gpu, gpu):
    """The driver's answers, behind a cache, are nothing that a graph could hold."""
    on_a_gpu(*gpu)
    device = torch.device("cuda", 0)

    def attend(x):
        return x if jit._lacking(device) is None else -x

    torch.compiler.reset()  # a graph of another GPU
    x = torch.ones(2)
    assert torch.equal(torch.compile(attend, backend="eager", fullgraph=True)(x), attend(x))


@pytest.fixture
def machine(monkeypatch):
    """A machine whose compiler has not been looked for."""
    monkeypatch.delenv("CC", raising=False)
    jit.no_compiler.cache_clear()
    yield monkeypatch
    jit.no_compiler.cache_clear()


def test_a_compiler_and_headers_that_are_there_are_enough(machine):
    if not (shutil.which("gcc") and Path(sysconfig.get_paths()["include"], "Python.h").is_file()):
        pytest.skip("this machine has no gcc, or no Python.h")
    assert jit.no_compiler() is None


def test_a_missing_compiler_is_named_with_its_remedy(machine):
    machine.setenv("PATH", "")
    assert "install gcc" in jit.no_compiler()
    jit.no_compiler.cache_clear()
    machine.setenv("CC", "/no/such/cc")
    assert "/no/such/cc does not run" in jit.no_compiler()


def test_missing_headers_are_named_by_the_version_of_this_python(machine, tmp_path):
    """Those of the distribution's own Python are others."""
    if not shutil.which("gcc"):
        pytest.skip("this machine has no gcc")
    machine.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    version = "{}.{}".format(*sys.version_info)
    assert f"{tmp_path} has no Python.h" in jit.no_compiler() and f"python{version}-dev" in jit.no_compiler()


def test_without_a_compiler_the_plain_forms_answer(on_a_gpu, monkeypatch, caplog):
    """Every run on a GPU, RoPE's too, ended in its first forward, after loading and tokenising."""
    on_a_gpu(9, 0, 227)
    x = mock.Mock(is_cuda=True, dtype=torch.bfloat16, device=torch.device("cuda", 0), shape=(1, 4, 8, 64))
    x.numel.return_value = 2048
    given = mock.Mock(moved=x, gate=None, **{"sizes.return_value": (1, 4, 8, 64), "heads.return_value": 4})
    given.wide.return_value = torch.float32
    assert rotate_triton.fits(x) and position_mix_triton.fits(given)
    monkeypatch.setattr(jit, "no_compiler", lambda: "no compiler here")
    jit._say_once.cache_clear()
    with caplog.at_level("INFO", "tape_ds"):
        assert not rotate_triton.fits(x) and not position_mix_triton.fits(given)
    assert len(caplog.messages) == 1 and "no compiler here" in caplog.messages[0]


def test_the_interpreter_takes_everything_but_bf16(monkeypatch):
    monkeypatch.setattr(jit, "triton", object())
    monkeypatch.setattr(jit, "INTERPRETED", True)
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert jit.why_not(torch.zeros(1, dtype=dtype)) is None
    assert "bf16" in jit.why_not(torch.zeros(1, dtype=torch.bfloat16))
    assert jit.capability(torch.device("cpu")) == jit.INTERPRETER


def test_without_triton_a_kernel_stays_the_function_it_is(monkeypatch):
    monkeypatch.setattr(jit, "triton", None)
    assert jit.jit(tensor) is tensor
    assert jit.why_not(torch.zeros(1)) == "Triton is not installed"
