"""What a search finds, and why."""

import time
from dataclasses import replace

import pytest

from tape_ds.planning import memory, search
from tape_ds.planning.job import problems
from tests.planning.helpers import FROZEN, job


def test_the_fastest_that_fits_comes_first():
    found = search.search(job())
    fitting = [each for each in found if each.fits]
    assert found[0].fits and fitting == found[: len(fitting)]
    steps = [each.clock.step for each in fitting]
    assert steps == sorted(steps) and all(each.memory.peak.total <= 85.0e9 for each in fitting)


def test_a_frozen_base_takes_zero_1():
    """Its weights fit, and gathering them would only cost."""
    assert search.search(job(trained=FROZEN))[0].layout.zero == 1


def test_the_explanation_names_each_lever_and_what_it_costs():
    told = search.explain(search.search(job(trained=FROZEN)))
    assert any(line.startswith("ZeRO 3: ") and "waiting for others" in line for line in told)
    assert any(line.startswith("micro-batch") and "does not fit" in line for line in told)


def test_no_way_is_one_that_a_run_refuses():
    found = search.search(job(model="llama2-70b", gpus=64))
    assert any(each.layout.tensor > 1 for each in found) and all(problems(each.job) == [] for each in found)


def test_offload_comes_when_nothing_else_fits():
    tight = job(gpus=1, global_batch=1, gpu="a100-40")
    best = search.search(tight)[0]
    assert best.layout.offload_optimizer == "cpu"


def test_what_fits_nowhere_is_said_with_the_least_it_needs():
    found = search.search(job(model="llama2-70b", gpus=1, global_batch=1, gpu="a100-40"))
    assert not found[0].fits and found[0].memory.peak.total == min(each.memory.peak.total for each in found)
    assert "nothing fits" in search.explain(found)[0]


@pytest.mark.parametrize("layout", [{}, {"checkpoint_layers": 1}, {"sequence": 8, "checkpoint_layers": 1}])
def test_the_longest_row_fits_and_a_longer_one_does_not(layout):
    asked = job(trained=FROZEN, **layout)
    longest = search.largest_length(asked)
    step = search.LENGTH_STEP * asked.layout.sequence

    def takes(length):
        one = replace(asked, length=length, global_batch=asked.layout.replicas)
        return memory.estimate(one).peak.total <= asked.gpu.memory

    assert longest % step == 0 and takes(longest) and not takes(longest + step)


def test_the_largest_micro_batch_fits():
    rows = search.largest_micro_batch(job(trained=FROZEN, checkpoint_layers=1))
    assert rows > 1
    fits = [search.fits(job(trained=FROZEN, checkpoint_layers=1, micro_batch=each)) for each in (rows, rows + 1)]
    assert fits == [True, False]


def test_a_search_of_70b_on_1024_gpus_takes_seconds():
    """Of processor time: ten are the limit of the whole command."""
    began = time.process_time()
    assert len(search.search(job(model="llama2-70b", gpus=1024, global_batch=1024))) > 100
    assert time.process_time() - began < 5
