"""Numbers that are not finite: reported by rank and sample, counted, a limit that ends; steps that change nothing."""

import copy
import json
import math

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, SequentialSampler

from tape_ds.resilience.guards import NonFinite, StoppedByGuard, protect, samples_of_step

NAN, INF = math.nan, math.inf


def samples_of(step, rank):
    return samples_of_step(step, rank, global_batch=8, micro_batch=2, world=2)


def guard(file=None, limit=0) -> NonFinite:
    """For two ranks of two samples, accumulated twice."""
    return NonFinite(limit, file, samples_of)


def lines(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_bad_step_is_a_line_with_its_samples(tmp_path):
    file = tmp_path / "run" / "nonfinite.jsonl"
    watched = guard(file)
    message = watched.observe(1, [1.0, NAN], [INF, INF], True)
    assert message.startswith("step 1: the loss on rank 1 is NaN (samples 2-3, 6-7); step SKIPPED")
    watched.observe(2, [1.0, 1.0], [NAN, NAN], True)
    assert watched.observe(3, [1.0, 1.0], [NAN, NAN], False) is None, (
        "a norm that was not measured is NaN"
    )
    watched.observe(4, [NAN, 1.0], [1.0, 1.0], False)
    watched.observe(5, [1.0, 1.0], [2.0, INF], True)
    found = lines(file)
    assert [(line["step"], line["kind"], line["ranks"]) for line in found] == [
        (1, "loss", [1]),
        (2, "gradient", []),
        (4, "loss", [0]),
        (5, "gradient", [1]),
    ]
    assert found[1]["samples"] == {"0": [8, 9, 12, 13], "1": [10, 11, 14, 15]}
    assert [(line["skipped"], line["in_a_row"]) for line in found] == [
        (True, 1),
        (True, 2),
        (False, 1),
        (True, 2),
    ]


def test_so_many_in_a_row_stop_the_run(tmp_path):
    """A good step between them begins a new row; the last of them is recorded as well."""
    file = tmp_path / "nonfinite.jsonl"
    watched = guard(file, limit=3)
    for step, loss in enumerate([NAN, NAN, 1.0, NAN, NAN], 1):
        watched.observe(step, [1.0, loss], [1.0, 1.0], loss != 1.0)
    with pytest.raises(
        StoppedByGuard, match=r"step 6: the loss on rank 1 .*\n.*3 steps in a row .*nonfinite_limit"
    ):
        watched.observe(6, [1.0, NAN], [INF, INF], True)
    assert [line["step"] for line in lines(file)] == [1, 2, 4, 5, 6]


def test_counts_come_back_from_a_checkpoint():
    """A run that is resumed over and over must not get ``limit`` new tries each time."""
    first = guard(limit=3)
    first.observe(1, [NAN, 1.0], [INF, INF], True)
    first.observe(2, [NAN, 1.0], [INF, INF], True)
    second = guard(limit=3)
    second.load_state(json.loads(json.dumps(first.state())))
    with pytest.raises(StoppedByGuard, match="3 so far, 3 in a row"):
        second.observe(3, [NAN, 1.0], [INF, INF], True)


def test_the_search_for_a_loss_scale_is_no_fault(tmp_path):
    """fp16 starts with a scale that is too large: a run of it would be stopped in its first steps."""
    watched = guard(tmp_path / "nonfinite.jsonl", limit=2)
    for step in range(1, 9):
        message = watched.observe(step, [1.0, 1.0], [INF, INF], True, rescaled=True)
    assert (
        message
        == "step 8: SKIPPED, fp16's loss scale was too large and is lowered; weights unchanged"
    )
    assert watched.total == 0 and not watched.file.exists()
    watched.observe(9, [1.0, NAN], [INF, INF], True, rescaled=True)
    assert watched.total == 1, "a loss is not scaled: this one is NaN"


def test_many_samples_are_cut_in_the_message():
    message = NonFinite(0, None, lambda step, rank: list(range(0, 40, 2))).observe(
        1, [NAN], [1.0], False
    )
    assert "10, ... (20 in all)" in message


def test_an_unwritable_journal_is_reported_once_and_stops_nothing(tmp_path, capsys):
    (tmp_path / "run").write_text("a file where the folder should be")
    watched = guard(tmp_path / "run" / "nonfinite.jsonl")
    for step in (1, 2):
        assert watched.observe(step, [NAN, 1.0], [INF, INF], True)
    assert (
        capsys.readouterr().err.count("nonfinite.jsonl cannot be written, training continues: ")
        == 1
    )


@pytest.mark.parametrize(("world", "micro", "accumulation"), [(1, 2, 1), (2, 2, 3), (3, 1, 2)])
def test_samples_are_those_that_the_loader_deals_out(world, micro, accumulation):
    """Against accelerate's own loader, over four steps."""
    batch, steps = world * micro * accumulation, 4
    for rank in range(world):
        batches = BatchSampler(SequentialSampler(range(batch * steps)), micro, drop_last=False)
        dealt = list(BatchSamplerShard(batches, num_processes=world, process_index=rank))
        for step in range(steps):
            taken = [
                i for each in dealt[step * accumulation : (step + 1) * accumulation] for i in each
            ]
            assert (
                samples_of_step(step, rank, global_batch=batch, micro_batch=micro, world=world)
                == taken
            )


def adamw(**options) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model of two layers that has done three good steps, with momentum and weight decay."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1, **options)
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer, value: float = 1.0) -> None:
    """One step; ``value`` multiplies the first layer's bias gradient."""
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    model[0].bias.grad[1] *= value
    optimizer.step()


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"foreach": False}, NAN),
        ({"foreach": True}, INF),
        ({"fused": True}, NAN),
        ({"amsgrad": True}, INF),
    ],
)
def test_a_protected_step_changes_nothing_when_a_gradient_is_not_finite(options, value):
    """One element of one bias: without protection NaN goes into that weight, decay and momentum go into all."""
    model, optimizer = adamw(**options)
    counter = protect(optimizer)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    step(model, optimizer, value)
    assert (counter.total, counter.skipped) == (1, True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[0][name]), name
    for number, state in optimizer.state_dict()["state"].items():
        for name, tensor in state.items():
            assert torch.equal(tensor, before[1][number][name]), (number, name)


def test_a_protected_optimizer_steps_as_it_did():
    """Before a skipped step, and after it; gradients whose squares overflow are finite."""
    (model, optimizer), (other, plain) = adamw(), adamw()
    counter = protect(optimizer)
    for value in (1.0, 1e25, NAN, 2.0):
        step(model, optimizer, value)
        if value == value:
            step(other, plain, value)
    assert (counter.total, counter.skipped) == (1, False)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
