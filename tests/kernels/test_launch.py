"""Launches: the static tables' defaults, and the measurement on request."""

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
    monkeypatch.setattr(
        launch, "triton", SimpleNamespace(testing=SimpleNamespace(do_bench=do_bench))
    )
    monkeypatch.setattr(launch, "_MEASURED", {})
    monkeypatch.delenv(launch.AUTOTUNE, raising=False)
    return timed


def choose(width=64, shape=(1, 8, 1024), name="kernel"):
    """For a kernel that returns how it was launched."""
    return launch.choose(name, TABLE, DEVICE, width, shape, lambda each: each)


@pytest.mark.parametrize(
    ("width", "block"), [(1, 16), (16, 16), (17, 32), (80, 128), (128, 128), (129, 256)]
)
def test_blocks_are_powers_of_two_that_a_tensor_core_takes(width, block):
    assert launch.padded(width) == block


def test_nothing_is_measured_unless_asked_for(measured, monkeypatch):
    assert choose() == SLOW
    monkeypatch.setattr(launch, "capability", lambda device: 80)
    assert choose() == FAST
    assert measured == []


def test_the_fastest_is_chosen_by_one_measurement_of_each_kernel_and_shape(measured, monkeypatch):
    monkeypatch.setenv(launch.AUTOTUNE, "1")
    assert choose(width=32) == SLOW and measured == [], "a row of one"
    assert choose() == choose() == FASTEST
    assert measured == [SLOW, FAST, FASTEST]
    choose(shape=(1, 8, 2048))
    choose(name="another")
    assert len(measured) == 9
