"""The sweep of launches: each reaches its kernel and no other, forward and backward, and is held to the truth."""

from dataclasses import replace

import pytest
import torch

from benchmarks import launches
from benchmarks.benchmark_case import Setting, run
from benchmarks.shapes import AttentionShape, Sweep
from tape_ds.kernels.jit import SHARED_MEMORY
from tape_ds.kernels.launch import INTERPRETER, Launch

SETTING = Setting(torch.device("cpu"), torch.float32)
SHAPE = AttentionShape(1, 2, 2, 24, 8)


@pytest.mark.parametrize("documents", [None, 2], ids=["dense", "packed"])
@pytest.mark.parametrize("kernel", launches.KERNELS)
def test_a_launch_replaces_the_table_s_for_its_kernel_alone(kernel, documents, monkeypatch):
    found = launches.KERNELS[kernel]
    own, table = dict(found.plain), found.plain if documents is None else found.documents
    seen = []
    shape = Sweep(kernel, replace(SHAPE, documents=documents))
    implementations = {each.name: each for each in launches.implementations(shape, SETTING.device)}
    implementation = implementations["ours, 64x32, 4 warps, 2 stages"]
    with implementation.around():
        seen.append(table[INTERPRETER, 16])
    assert seen == [(Launch(64, 32, 4, 2),)]
    assert dict(found.plain) == own and table[INTERPRETER, 16] == (Launch(32, 32),)
    assert len(implementations) == 1 + launches.INTERPRETED


def test_plausible_launches_fit_and_are_many():
    """7B on an H100: 128 rows and 64 columns with 3 stages, and not 128 and 128."""
    for name, kernel in launches.KERNELS.items():
        for capability in SHARED_MEMORY:
            assert len(list(launches.plausible(kernel, capability, 128))) >= 8, (name, capability)
    forward = set(launches.plausible(launches.KERNELS["forward"], 90, 128))
    assert Launch(128, 64, 8, 3) in forward and Launch(128, 128, 8, 3) not in forward


def test_a_launch_that_computes_something_else_gets_no_time(monkeypatch):
    """A stand-in for a launch whose tile is broken: the truth finds it out before it is timed."""
    shape = Sweep("forward", SHAPE)
    asked = launches.case(shape, SETTING)
    implementations = list(launches.implementations(shape, SETTING.device))[:2]
    broken = implementations[1]._replace(
        make=lambda: lambda *inputs: tuple(1.5 * x for x in implementations[1].make()(*inputs))
    )
    entries = launches.attention.between([implementations[0], broken], SHAPE, SETTING).entries
    findings = run(asked._replace(entries=entries), SETTING, 1, head_start=True)
    assert [each.status for each in findings] == ["timed", "wrong"]
