"""How a run ends before its last step, and how it goes on: in one process, without an engine."""

import json
import math

import pytest
from safetensors.torch import load_file
from transformers import Trainer

from tape_ds.errors import UserError
from tape_ds.training import checkpoint, execution, extension, run_folder, shared_work, spikes
from tape_ds.training.run import NothingToDo
from tape_ds.training.stopping import StopRequest
from tape_ds.training.trainer import TapeTrainer
from tests.training.test_extension import model, recipe

__all__ = ["model"]  # the fixture

FIELDS = {"max_steps": 6, "save_steps": 2, "logging_steps": 4, "report_to": "none", "method": "norms", "eval_data": ""}


@pytest.fixture(autouse=True)
def no_process_group(monkeypatch):
    """The tests' own process goes on after a run."""
    monkeypatch.setattr(execution, "leave_process_group", lambda: None)


@pytest.fixture
def train(model):
    """Carries out a run in a folder beside the model; returns its exit code."""

    def carry_out(output="run", stop=None, **changes):
        asked = recipe(model, **(FIELDS | {"output_dir": str(model.parent / output)} | changes))
        return execution.carry_out(extension.assemble(asked), stop)

    carry_out.folder = model.parent
    return carry_out


def at_step(monkeypatch, step, act):
    """Have ``act`` done within optimizer step ``step``, counted from 1."""
    once, forward = [], TapeTrainer.training_step

    def training_step(self, *args, **kwargs):
        if self.state.global_step == step - 1 and not once:
            once.append(step)
            act(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(TapeTrainer, "training_step", training_step)


def told(folder):
    """Losses by step, and the weights."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = (folder / "trained" / "trained.safetensors").read_bytes()
    return [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in lines], weights


@pytest.mark.parametrize("steps", [(1, 5), (3, 4), (6,)])
def test_a_stop_is_committed_and_gone_on_with_to_the_last_digit(train, monkeypatch, steps, capsys):
    """Between logging steps as well: the sums of a mean that is not logged yet come back. Twice in a row."""
    assert train("whole") == 0
    for step in steps:
        stop = StopRequest()
        with monkeypatch.context() as patched:
            at_step(patched, step, lambda _, stop=stop: stop.request("SIGTERM"))
            assert train("run", stop, resume="auto") == 0
        assert f"stopped at step {step}: SIGTERM" in capsys.readouterr().out
        assert run_folder.stopped(train.folder / "run")["step"] == step
        assert checkpoint.committed(train.folder / "run")[-1].name == f"checkpoint-{step}"
    assert not (train.folder / "run" / "trained").exists(), "what is not done is not stored"
    assert train("run", resume="auto") == 0
    assert told(train.folder / "run") == told(train.folder / "whole")
    assert run_folder.stopped(train.folder / "run") is None


def test_a_stop_before_the_first_step_leaves_nothing(train):
    stop = StopRequest()
    stop.request("SIGTERM")
    assert train("run", stop) == 0 and checkpoint.numbered(train.folder / "run") == []
    assert run_folder.stopped(train.folder / "run")["step"] == 0


def test_a_stop_while_it_scores_waits_for_no_more_documents(train, monkeypatch):
    (train.folder / "held.txt").write_text("three one two " * 60)
    stop, scored = StopRequest(), []

    def score(*_):
        return shared_work.share_out(lambda _: (scored.append(1), stop.request("SIGINT")), range(5))

    monkeypatch.setattr("tape_ds.training.callbacks.score_variants", score)
    assert train("run", stop, eval_data=f"text:{train.folder}/held.txt") == 0
    assert scored == [1] and checkpoint.numbered(train.folder / "run") == []


def test_a_run_that_has_ended_is_not_begun_again(train):
    assert train() == 0
    with pytest.raises(NothingToDo, match="finished already, at step 6"):
        train(resume="auto")
    assert train(resume="auto", max_steps=8, resume_anyway=True) == 0
    assert run_folder.finished(train.folder / "run")["step"] == 8


def test_another_run_s_folder_is_refused_or_cleared(train):
    assert train() == 0
    with pytest.raises(UserError, match=r"holds checkpoints of an earlier run: checkpoint-4, checkpoint-6"):
        train(learning_rate=0.5)
    assert run_folder.finished(train.folder / "run") is not None, "nothing was touched"
    assert train(learning_rate=0.5, start_anew=True, max_steps=2) == 0
    assert [folder.name for folder in checkpoint.numbered(train.folder / "run")] == ["checkpoint-2"]


@pytest.mark.parametrize("text, kept", [("", False), ("before the change", False), ("before-the-change", True)])
def test_a_person_asks_for_a_checkpoint(train, monkeypatch, text, kept):
    """A file in the run's folder; with a name in it the checkpoint stays for ever."""
    folder = train.folder / "run"
    at_step(monkeypatch, 1, lambda _: (folder / run_folder.SAVE_NOW).write_text(text))
    monkeypatch.setattr("tape_ds.training.stopping._WRITING_SECONDS", 0)
    assert train(save_total_limit=1) == 0
    names = [each.name for each in checkpoint.committed(folder)]
    assert names == (["checkpoint-1"] if kept else []) + ["checkpoint-6"]
    assert not (folder / run_folder.SAVE_NOW).exists()


def test_steps_that_are_kept(train):
    assert train(keep_steps=[1, 3], keep_every=4, save_total_limit=1) == 0
    steps = [checkpoint.step_of(folder) for folder in checkpoint.committed(train.folder / "run")]
    assert steps == [1, 3, 4, 6]


def poison(trainer):
    """Make every gradient of the step that is being taken NaN."""
    parameter = next(parameter for parameter in trainer.model.parameters() if parameter.requires_grad)
    parameter.register_hook(lambda gradient: gradient * math.nan)


def test_steps_that_are_not_finite_end_the_run(train, monkeypatch, capsys):
    """From step 3 on every gradient is NaN: left out, counted, and after two in a row the end, with weights intact."""
    at_step(monkeypatch, 3, poison)
    assert train(nonfinite_limit=2, logging_steps=1) == 3
    printed = capsys.readouterr().out
    assert "step 3: a gradient" in printed and "step SKIPPED, weights unchanged (1 so far, 1 in a row)" in printed
    lines = [json.loads(line) for line in (train.folder / "run" / run_folder.NONFINITE).read_text().splitlines()]
    assert [(line["step"], line["samples"]["0"]) for line in lines] == [(3, [8, 9, 10, 11]), (4, [12, 13, 14, 15])]
    assert not (train.folder / "run" / "trained").exists() and run_folder.finished(train.folder / "run") is None
    newest = checkpoint.committed(train.folder / "run")[-1]
    assert all(tensor.isfinite().all() for tensor in load_file(newest / "trained.safetensors").values())


@pytest.mark.parametrize("action", ["warn", "skip"])
def test_a_spike_is_said_and_left_out_where_that_is_wanted(train, monkeypatch, capsys, action):
    monkeypatch.setattr(spikes, "FEWEST", 3)
    original = Trainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        return original(self, *args, **kwargs) + (50 if self.state.global_step == 4 else 0)

    monkeypatch.setattr(Trainer, "compute_loss", compute_loss)
    assert train(spike_action=action, logging_steps=1, spike_window=8) == 0
    printed = capsys.readouterr().out
    assert "step 5: the loss" in printed and ("step SKIPPED, weights unchanged" in printed) == (action == "skip")
    lines = [json.loads(line) for line in (train.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[4]["loss"] > 50, "the loss itself is logged"
    assert [line["skipped"] for line in lines] == [0, 0, 0, 0, *([1, 1] if action == "skip" else [0, 0])]
    assert not (train.folder / "run" / run_folder.NONFINITE).exists()
