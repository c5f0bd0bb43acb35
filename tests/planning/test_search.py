"""What a search finds, whether a run fits, and the remedy where it does not."""

from dataclasses import replace

import pytest

from tape_ds.planning import search
from tape_ds.planning.job import possible
from tape_ds.planning.prediction import Plan
from tests.planning.helpers import FROZEN, job


def test_the_fastest_that_fits_comes_first():
    found = search.search(job())
    fitting = [each for each in found if each.fits]
    assert found[0].fits and fitting == found[: len(fitting)]
    steps = [each.step.all for each in fitting]
    assert steps == sorted(steps) and all(each.memory.peak.total <= 85.0e9 for each in fitting)


def test_a_frozen_base_takes_zero_1_and_its_neighbours_are_shown():
    """Its weights fit, and gathering them would only cost."""
    found = search.search(job(trained=FROZEN))
    best = found[0].job.layout
    near = [each for each in found[1:] if len(each.job.layout.changes(best)) == 1]
    assert best.zero == 1 and best.checkpoint_layers is None
    assert {each.job.layout.checkpoint_layers for each in near} == {None, 1, "selective"}
    assert any(
        each.job.layout.zero == 3 and each.step.waiting > found[0].step.waiting for each in near
    )
    assert any(not each.fits for each in near)


def test_no_way_is_one_that_a_run_refuses():
    found = search.search(job(model="llama2-70b", world=64))
    assert any(each.job.layout.tensor > 1 for each in found) and all(
        possible(each.job) for each in found
    )


def test_a_class_of_transformers_is_neither_cut_nor_shared_nor_tiled():
    found = search.search(job(model="EleutherAI/gpt-j-6b", length=search.LONG))
    assert {
        (way.tensor, way.sequence, way.mlp_tiles) for way in (each.job.layout for each in found)
    } == {(1, 1, 1)}


def test_offload_comes_when_nothing_else_fits():
    best = search.search(job(world=1, global_batch=1, gpu="a100-40"))[0].job.layout
    assert best.offload_optimizer == "cpu"


OPEN = {"deepspeed", "activation_checkpointing", "checkpoint_layers", "per_device_train_batch_size"}


@pytest.mark.parametrize("gpu", ["a100-80", "rtx4090"])
def test_the_fastest_layouts_leave_memory_to_spare(gpu):
    asked = job(trained=FROZEN, gpu=gpu, checkpoint_layers=1)
    found = search.fastest(asked, OPEN)
    limit = asked.gpu.memory * (1 - search.SPARE)
    assert found and all(each.memory.peak.total <= limit for each in found)
    assert search.fastest(replace(asked, gpu=None), OPEN) == []
    with pytest.raises(ValueError, match="predicted for GPUs"):
        Plan(replace(asked, gpu=None)).step  # noqa: B018
    best = min(each.step.all for each in found)
    assert found[0].step.all <= (1 + search.TIE) * best and best < Plan(asked).step.all


@pytest.mark.parametrize("field", sorted(OPEN - {"checkpoint_layers"}))
def test_only_what_is_left_open_is_chosen(field):
    asked = job(trained=FROZEN, checkpoint_layers="selective", zero=2, gpu="h200")
    found = search.fastest(asked, {field})
    changed = {name for each in found for name in each.job.layout.changes(asked.layout)}
    assert len(found) > 1 and changed == {field}
    assert {each.job.layout.checkpoint_layers for each in found} <= {"selective", None}


def test_of_equal_speeds_the_lowest_stage_and_the_smallest_forward_that_keeps_a_gpu_busy_is_chosen():
    """Small models, of which one sequence would be a forward of launches."""
    asked = job(model="smollm2", world=8, global_batch=512, length=1024)
    layout = search.fastest(asked, OPEN)[0].job.layout
    assert (layout.zero, layout.micro_batch, layout.checkpoint_layers) == (1, 16, None)


@pytest.mark.parametrize("layout", [{}, {"sequence": 8, "checkpoint_layers": 1}])
def test_the_longest_sequence_fits_and_a_longer_one_does_not(layout):
    asked = job(trained=FROZEN, **layout)
    longest = search.largest_length(asked)
    step = search.LENGTH_STEP * asked.layout.sequence
    takes = [
        Plan(replace(asked, length=length, global_batch=asked.layout.data)).fits
        for length in (longest, longest + step)
    ]
    assert longest % step == 0 and takes == [True, False]


def test_the_largest_micro_batch_fits():
    asked = {"trained": FROZEN, "checkpoint_layers": 1}
    sequences = search.largest_micro_batch(job(**asked))
    assert sequences > 1
    assert [Plan(job(**asked, micro_batch=each)).fits for each in (sequences, sequences + 1)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"zero": 3, "length": 32_768, "global_batch": 8}, "--sequence_parallel_size 4"),
        ({"model": "llama2-70b", "world": 8, "gpu": "a100-40"}, "more GPUs"),
    ],
)
def test_the_remedy_is_the_nearest_that_would_fit(changes, remedy):
    (found,) = search.refusal(Plan(job(**changes)))
    assert found.field == "memory" and "GiB would be needed" in found.wrong
    assert remedy in found.remedy and "--force" in found.remedy


def test_the_hosts_memory_has_an_end_as_well():
    found = search.refusal(
        Plan(
            job(
                model="llama2-70b",
                world=8,
                zero=3,
                offload_optimizer="cpu",
                checkpoint_layers=1,
                gpu="a100-80",
            )
        )
    )
    assert "offload" in [each.field for each in found]
