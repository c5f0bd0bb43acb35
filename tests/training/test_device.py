"""The device of a run is shown, and a CPU that was not asked for is refused."""

import pytest
import torch

from tape_ds import installation
from tape_ds.errors import UserError, raise_if_any
from tape_ds.kernels import jit
from tape_ds.planning import hardware, shape
from tape_ds.resilience import stopping
from tape_ds.targets.find import known_target
from tape_ds.training import device, library_checks
from tests.config import loads

LARGE = ["--recipe", "llama2_7b_8k"]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """A machine without a GPU and without a choice of device."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(stopping, "launcher_option", lambda name: None)
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: None)
    monkeypatch.setattr(device, "cpu_multiplies_bf16", lambda: True)
    for name in ("DS_ACCELERATOR", installation.FOUND_NO_GPU, "LOCAL_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def refusals(recipe):
    target = known_target(recipe) if recipe.trains else None
    return device.check(recipe, None if target is None else target.config)


def with_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(jit, "no_compiler", lambda: None)


def test_a_large_model_is_not_trained_on_a_cpu_by_chance():
    (problem,) = refusals(loads.extension(LARGE))
    assert "6.8 B parameters" in problem.wrong and "--allow_cpu" in problem.remedy
    (problem,) = refusals(loads.pretraining(["--recipe", "c4_7b"]))
    assert "B parameters" in problem.wrong


@pytest.mark.parametrize(
    "words",
    [
        [*LARGE, "--allow_cpu"],
        [*LARGE, "--use_cpu"],
        ["--model", "meta-llama/Llama-2-7b-hf", "--method", "yarn"],
    ],
)
def test_a_forced_run_trains_there_and_scoring_needs_no_gpu(words):
    assert refusals(loads.extension(words)) == refusals(loads.extension([])) == []


def test_a_model_that_cannot_be_counted_is_refused_and_not_begun(monkeypatch):
    """Any error while counting was passed over, and the run began on the CPU."""

    def refuse(_):
        raise RuntimeError("Storage size calculation overflowed with sizes=[...]\nmore")

    monkeypatch.setattr(shape, "sizes", refuse)
    (problem,) = refusals(loads.extension(LARGE))
    assert problem.wrong.endswith(
        "cannot be counted (Storage size calculation overflowed with sizes=[...])"
    )


def test_fp16_is_refused_on_a_cpu():
    found = refusals(
        loads.extension(
            ["--recipe", "demo", "--fp16", "true", "--bf16", "false", "--use_cpu", "true"]
        )
    )
    assert [problem.field for problem in found] == ["fp16"]


def test_the_environment_may_choose_the_cpu(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert refusals(loads.extension(LARGE)) == []
    assert (
        device.describe(loads.extension([], world_size=2))
        == "2 processes on the CPU (DS_ACCELERATOR=cpu)"
    )
    monkeypatch.setenv(installation.FOUND_NO_GPU, "1")  # tape-ds has set the other, not the user
    assert len(refusals(loads.extension(LARGE))) == 1
    assert device.describe(loads.extension([])) == "1 process on the CPU (no GPU is visible)"


def test_a_run_for_which_gpus_were_asked_does_not_slip_onto_the_cpu(monkeypatch):
    monkeypatch.setattr(stopping, "launcher_option", {"--num_gpus": "2"}.get)
    (problem,) = refusals(loads.extension([]))
    assert (problem.field, problem.value) == (
        "--num_gpus",
        "2",
    ) and "--num_accelerators 2" in problem.remedy
    assert refusals(loads.extension(["--allow_cpu"])) == []
    with_gpus(monkeypatch, 2)
    assert refusals(loads.extension([])) == []


def test_kernels_that_are_asked_for_without_a_compiler_are_refused(monkeypatch):
    with_gpus(monkeypatch, 1)
    monkeypatch.setattr(jit, "no_compiler", lambda: "Triton needs a C compiler")
    assert "Triton needs a C compiler" in device.describe(loads.extension([])), (
        "the plain forms take over"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("tape_ds.training.library_checks.is_torch_cuda_available", lambda: True)
    monkeypatch.setattr("tape_ds.training.library_checks.is_torch_bf16_gpu_available", lambda: True)
    for flag, value in {"attention_backend": "triton", "torch_compile": "true"}.items():
        with pytest.raises(UserError, match=rf"{flag}.*Triton needs a C compiler"):
            raise_if_any(library_checks.check(loads.extension([f"--{flag}", value])))


def test_bf16_on_a_cpu_without_its_instructions_is_said_to_be_slow(monkeypatch):
    """The demo was slow on such a CPU without a word: its products of bf16 have an eighth of fp32's speed."""
    monkeypatch.setattr(device, "cpu_multiplies_bf16", lambda: False)
    assert "--no_bf16" in device.describe(loads.extension(["--bf16"]))
    assert "bf16" not in device.describe(loads.extension(["--bf16", "false"]))
    monkeypatch.setattr(device, "cpu_multiplies_bf16", lambda: True)
    assert "bf16" not in device.describe(loads.extension(["--bf16"]))
