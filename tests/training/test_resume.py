"""What can be resumed is told from what only looks like it, before a run starts."""

import json

import pytest

from tape_ds.errors import UserError
from tape_ds.training import resume


def saved(output, step, *, processes=0, whole=True):
    """A checkpoint folder, of an engine where ``processes`` is not 0."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trained.json").write_text("{}")
    if processes:
        (folder / f"global_step{step}").mkdir()
        for rank in range(processes):
            (folder / f"global_step{step}" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    else:
        (folder / "optimizer.pt").touch()
        (folder / "scheduler.pt").touch()
    state = json.dumps({"global_step": step})
    (folder / "trainer_state.json").write_text(state if whole else state[:5])
    return folder


@pytest.mark.parametrize("given", [None, False, ""])
def test_nothing_asked_is_a_fresh_start(tmp_path, given):
    saved(tmp_path, 3)
    assert resume.find(given, tmp_path, deepspeed=False, processes=1) is None


def test_true_is_the_newest_whole_one(tmp_path):
    """By number, not by name; a save that was cut short is passed over."""
    for step in (8, 16):
        saved(tmp_path, step, processes=2)
    saved(tmp_path, 24, processes=2, whole=False)
    (tmp_path / "checkpoint-old").mkdir()
    assert resume.find(True, tmp_path, deepspeed=True, processes=2) == str(tmp_path / "checkpoint-16")


@pytest.mark.parametrize(
    ("kept", "given", "deepspeed", "processes", "wrong"),
    [
        ({}, True, True, 2, "holds no complete checkpoint"),
        ({"processes": 2, "whole": False}, "checkpoint-3", True, 2, "no complete checkpoint"),
        ({"processes": 2}, "checkpoint-3", True, 4, "saved by 2 processes, this job has 4"),
        ({"processes": 2}, "checkpoint-3", False, 2, "not saved by a run without DeepSpeed"),
        ({"processes": 0}, "checkpoint-3", True, 1, "not saved by DeepSpeed"),
    ],
)
def test_what_cannot_be_resumed_is_refused(tmp_path, kept, given, deepspeed, processes, wrong):
    if kept:
        saved(tmp_path, 3, **kept)
    address = given if given is True else str(tmp_path / given)
    with pytest.raises(UserError, match=wrong) as caught:
        resume.find(address, tmp_path, deepspeed=deepspeed, processes=processes)
    assert caught.value.problems[0].field == "resume_from_checkpoint"
