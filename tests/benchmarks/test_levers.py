"""The levers' benchmark: every lever computes the same, and a CPU's copies are out of the count's sight."""

import pytest
import torch

from benchmarks import levers
from benchmarks.contest import TIMED, Setting, run
from benchmarks.levers import LEVERS, Lever, apply, hide_copies, outside
from benchmarks.measure import _cpu_peak
from benchmarks.shapes import Model
from tape_ds.training.offload import InputOffload
from tape_ds.training.recipe.memory import Memory
from tests.model.helpers import tiny_model, tokens

CPU = torch.device("cpu")


def test_every_lever_computes_the_same(toys):
    setting, shape = Setting(CPU, torch.float32), Model("tiny", 3, 1, 40)
    found = run(levers.contest(shape, setting), setting, 1, head_start=False, say=lambda _: None)
    assert len(found) == 2 * len(LEVERS)
    assert [finding.reason for finding in found if finding.status != TIMED] == []
    assert all(finding.peak_bytes for finding in found)


def peak(lever):
    """Bytes above the model's in one step of a deeper tiny model."""
    model, ids = tiny_model("gqa", "tape", num_hidden_layers=8).train(), tokens(2, 64)
    apply(model, lever)
    return _cpu_peak(lambda: levers._loss(model, ids, lever.whole_logits).backward())


def test_the_more_is_given_up_the_lower_the_peak():
    nothing, second, every = (peak(LEVERS[name]) for name in ("nothing", "every 2nd block again", "every block again"))
    selective, moved = peak(LEVERS["selective"]), peak(LEVERS["every block again, inputs on the host"])
    assert moved < every < selective < nothing and every < second < nothing


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


def test_a_lever_without_a_section_computes_nothing_again():
    model = tiny_model("gqa", "tape")
    assert apply(model, Lever(tiles=2)).recompute is None
    assert apply(model, Lever(Memory())).recompute is not None
