"""The savings' benchmark: every saving computes the same and shows, and a CPU's copies are out of the count's sight."""

import functools

import pytest
import torch

from benchmarks import memory_savings, models
from benchmarks.benchmark_case import TIMED, Setting, run
from benchmarks.groups import GROUPS
from benchmarks.measure import _cpu_peak
from benchmarks.memory_savings import NOTHING, ON_BLOCKS, ON_LOGITS, Saving, apply, hide_copies, outside, savings_of
from benchmarks.shapes import BenchmarkModel
from tape_ds.recipe.sections import Memory
from tape_ds.training.memory_savings import InputOffload
from tests.model.helpers import tiny_model, tokens

CPU = torch.device("cpu")
SAVINGS = NOTHING | ON_LOGITS | ON_BLOCKS


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 128 tokens, the fewest there are."""
    monkeypatch.setattr("tape_ds.kernels.linear_cross_entropy.CHUNK_BYTES", 1)


def test_the_loss_of_whole_sequences_is_the_same(toys, small_chunks):
    """Savings on blocks are checked with every other group's implementations; their toy sequence has a single chunk."""
    setting, shape = Setting(CPU, torch.float32), BenchmarkModel("tiny", 1, 1, 200)
    found = run(memory_savings.case(shape, setting), setting, 1, head_start=False)
    assert [(finding.implementation, finding.status) for finding in found] == [
        (name, TIMED) for name in NOTHING | ON_LOGITS
    ]


@pytest.mark.parametrize(
    "shape, pulled",
    [
        (BenchmarkModel("deep", 16, 1, 2_048), ON_BLOCKS),
        (BenchmarkModel("155M", 1, 1, 4_096), ON_LOGITS),
        (BenchmarkModel("7B", 8, 1, 8_192), ON_LOGITS | ON_BLOCKS),
        (BenchmarkModel("155M", 1, 1, 1_024), {}),
    ],
)
def test_a_saving_that_would_do_nothing_is_not_pulled(shape, pulled):
    assert savings_of(shape) == NOTHING | pulled


def test_every_saving_is_pulled_at_one_of_a_device_s_shapes():
    for listed in (GROUPS["memory_savings"].cuda, GROUPS["memory_savings"].cpu):
        assert {name for shape in listed for name in savings_of(shape)} == SAVINGS.keys()
        assert {shape.name for shape in listed} <= models.SIZES.keys()


@functools.cache
def peak(name, **sizes):
    """Bytes above the model's in one step of a tiny model, with the saving of this name."""
    model, ids = tiny_model("gqa", "tape", **sizes).train(), tokens(2, 256)
    apply(model, SAVINGS[name])
    return _cpu_peak(lambda: models.loss(model, ids, **SAVINGS[name].options).backward())


@pytest.mark.parametrize(
    "less, more",
    [
        ("ours, every 2nd block again", "ours"),
        ("ours, selective_matmuls", "ours"),
        ("ours, 8 tiles", "ours"),
        ("ours, selective", "ours, selective_matmuls"),
        ("ours, every block again", "ours, every 2nd block again"),
        ("ours, every block again", "ours, selective"),
        ("ours, selective, inputs on the host", "ours, selective"),
        ("ours, every block again, inputs on the host", "ours, every block again"),
        ("ours, every block again, 8 tiles", "ours, every block again"),
        ("ours, every block again, 8 tiles, inputs on the host", "ours, every block again, 8 tiles"),
    ],
)
def test_the_more_is_given_up_the_lower_the_peak(less, more):
    sizes = {"num_hidden_layers": 8, "intermediate_size": 128}
    assert 20 * peak(less, **sizes) < 19 * peak(more, **sizes)


def test_logits_of_a_chunk_are_fewer_than_of_the_whole_sequence(small_chunks):
    sizes = {"num_hidden_layers": 1, "vocab_size": 1_024}
    assert 2 * peak("ours", **sizes) < peak("ours, logits of the whole row", **sizes)


def test_copies_lie_where_the_count_does_not_look():
    offload = InputOffload(CPU, keep_last=0)
    hide_copies(offload)
    x = torch.randn(1000, requires_grad=True)

    def step():
        with offload():
            y = x * x
        y.sum().backward()

    step()
    assert offload.moved_bytes == 2 * 4000
    torch.testing.assert_close(x.grad, 2 * x.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (0,), ()])
def test_a_tensor_in_pythons_own_memory(shape, dtype):
    made = []
    assert _cpu_peak(lambda: made.append(outside(torch.Size(shape), dtype))) == 0
    assert made[0].shape == shape and made[0].dtype == dtype


def test_a_saving_without_a_section_computes_nothing_again():
    model = tiny_model("gqa", "tape")
    assert apply(model, Saving(tiles=2)).recompute is None
    assert apply(model, Saving(Memory())).recompute is not None
