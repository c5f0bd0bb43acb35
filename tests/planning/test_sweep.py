"""The settings of the stored tables, and levers pulled one at a time."""

from tape_ds.planning import sweep
from tape_ds.planning.job import problems
from tests.planning.helpers import FROZEN, job


def test_every_setting_of_a_scaling_is_there_once():
    for scaling in sweep.SCALINGS:
        found = [
            (name, method, asked.length, asked.gpu.name, asked.layout.gpus)
            for name, method, asked in sweep.jobs(scaling)
        ]
        assert len(set(found)) == len(found) == 3 * 2 * 3 * 3 * len(sweep.GPU_COUNTS)
        assert max(sweep.GPU_COUNTS) == 1024


def test_strong_scaling_keeps_the_tokens_and_weak_scaling_those_of_a_gpu():
    for _, _, asked in sweep.jobs("strong"):
        assert asked.step_tokens == sweep.STRONG_TOKENS
    for _, _, asked in sweep.jobs("weak"):
        assert asked.step_tokens == sweep.WEAK_TOKENS * asked.layout.gpus


def test_a_lever_that_saves_says_how_much_and_what_it_costs():
    found = {each.lever: each for each in sweep.levers(job(trained=FROZEN, zero=1))}
    assert found["none of these"].saved_gigabytes == found["none of these"].slower == 0
    again = found["checkpointing, every layer"]
    assert again.saved_gigabytes > 20 and 0.3 < again.slower < 0.5
    assert found["checkpointing and checkpoint offload"].saved_gigabytes > again.saved_gigabytes
    assert found["ZeRO-2"].saved_gigabytes < 0.1  # a frozen base has next to no gradients


def test_every_point_can_be_spread_somehow():
    (name, method, asked), *_ = sweep.jobs("weak", [8])
    found = sweep.point("weak", name, method, asked)
    assert found.layout and found.gigabytes <= asked.gpu.memory / 1e9 and problems(asked) == []
