"""Launches: what the static tables give, and what is measured when somebody asks for it."""

from types import SimpleNamespace

import pytest
import torch

from tape_ds.kernels import launch
from tape_ds.kernels.launch import Launch

SLOW, FAST, FASTEST = Launch(128, 64, 8, 2), Launch(64, 64, 4, 3), Launch(32, 64, 4, 2)
TABLE = {
    (90, 64): (SLOW, FAST, FASTEST),
    (90, 32): (SLOW,),
    (80, 64): (FAST, SLOW),
    (launch.INTERPRETER, 64): (FASTEST, SLOW),
}
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def measured(monkeypatch):
    """A GPU whose clock is a table, and the launches that were timed, in order."""
    seconds, timed = {SLOW: 3.0, FAST: 2.0, FASTEST: 1.0}, []

    def do_bench(run):
        timed.append(run())
        return seconds[timed[-1]]

    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "capability", lambda device: 90)
    monkeypatch.setattr(launch, "triton", SimpleNamespace(testing=SimpleNamespace(do_bench=do_bench)))
    monkeypatch.setattr(launch, "_MEASURED", {})
    monkeypatch.delenv(launch.AUTOTUNE, raising=False)
    return timed


def choose(width=64, shape=(1, 8, 1024), name="kernel"):
    """With a kernel that does nothing but say how it was launched."""
    return launch.choose(name, TABLE, DEVICE, width, shape, lambda each: each)


@pytest.mark.parametrize(
    ("width", "block"), [(1, 16), (16, 16), (17, 32), (32, 32), (80, 128), (96, 128), (128, 128), (129, 256)]
)
def test_blocks_are_powers_of_two_that_a_tensor_core_takes(width, block):
    assert launch.padded(width) == block


def test_a_launch_tells_the_compiler_all_it_needs():
    assert Launch(128, 64, 8, 3).options == {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": True}


def test_nothing_is_measured_unless_asked_for(measured, monkeypatch):
    assert choose() == SLOW
    monkeypatch.setenv(launch.AUTOTUNE, "0")
    assert choose() == SLOW
    assert measured == []


def test_the_row_is_that_of_the_device(measured, monkeypatch):
    monkeypatch.setattr(launch, "capability", lambda device: 80)
    assert choose() == FAST


def test_the_fastest_is_chosen_when_asked_for(measured, monkeypatch, caplog):
    monkeypatch.setenv(launch.AUTOTUNE, "1")
    with caplog.at_level("INFO", logger=launch.__name__):
        assert choose() == FASTEST
    assert measured == [SLOW, FAST, FASTEST]
    assert f"kernel at (1, 8, 1024): {FASTEST} of 3 launches is fastest" in caplog.text


def test_each_kernel_and_shape_is_measured_once(measured, monkeypatch):
    monkeypatch.setenv(launch.AUTOTUNE, "1")
    for _ in range(3):
        choose()
    assert len(measured) == 3
    choose(shape=(1, 8, 2048))
    assert len(measured) == 6
    choose(name="another")
    assert len(measured) == 9


def test_a_row_of_one_needs_no_measurement(measured, monkeypatch):
    monkeypatch.setenv(launch.AUTOTUNE, "1")
    assert choose(width=32) == SLOW
    assert measured == []


def test_the_interpreter_has_a_column_of_its_own_and_no_clock(measured, monkeypatch):
    monkeypatch.setenv(launch.AUTOTUNE, "1")
    monkeypatch.setattr(launch, "INTERPRETED", True)
    monkeypatch.setattr(launch, "capability", lambda device: launch.INTERPRETER)
    assert choose() == FASTEST
    assert measured == []
