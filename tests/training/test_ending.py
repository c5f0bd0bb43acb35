"""How a run ends before its last step, and how it is resumed: in one process, without an engine."""

import dataclasses
import errno
import json
import math
import resource
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from tape_ds import checkpoint, run_folder, storage
from tape_ds.checkpoint import saving
from tape_ds.checkpoint.saving import Saver
from tape_ds.distributed import distributed_map
from tape_ds.errors import DiskError, UserError
from tape_ds.resilience import spikes
from tape_ds.resilience.stopping import LAUNCHER, StopRequest
from tape_ds.training import execution
from tape_ds.training.job import NothingToDo
from tape_ds.training.trainer import TapeTrainer
from tests.training.runs.helpers import assemble
from tests.training.runs.test_extension import model, recipe

__all__ = ["model"]  # the fixture

FIELDS = {
    "max_steps": 6,
    "save_steps": 2,
    "logging_steps": 4,
    "report_to": "none",
    "method": "norms",
    "eval_data": "",
}


@pytest.fixture(autouse=True)
def no_process_group(monkeypatch):
    """The process of the tests continues after a run."""
    monkeypatch.setattr(execution, "leave_process_group", lambda: None)


@pytest.fixture
def train(model):
    """Carries out a run in a folder next to the model; returns its exit code."""

    def execute(output="run", stop=None, **changes):
        asked = recipe(model, **(FIELDS | {"output_dir": str(model.parent / output)} | changes))
        return execution.execute(assemble(asked), stop)

    execute.folder = model.parent
    return execute


def at_step(monkeypatch, step, act):
    """Have ``act`` done within optimizer step ``step``, counted from 1."""
    once, forward = [], TapeTrainer.training_step

    def training_step(self, *args, **kwargs):
        if self.state.global_step == step - 1 and not once:
            once.append(step)
            act(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(TapeTrainer, "training_step", training_step)


def recorded(folder):
    """Losses by step, and the weights."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = (folder / "trained" / "trained.safetensors").read_bytes()
    return [
        (line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in lines
    ], weights


@pytest.mark.parametrize("steps", [(1, 5), (3, 4), (6,)])
def test_a_stop_is_committed_and_resumed_to_the_last_digit(train, monkeypatch, steps, capsys):
    """Between logging steps as well: the sums of a mean that is not logged yet come back. Twice in a row."""
    assert train("whole") == 0
    for step in steps:
        stop = StopRequest()
        with monkeypatch.context() as patched:
            at_step(patched, step, lambda _, stop=stop: stop.request("SIGTERM"))
            assert train("run", stop, resume="auto") == 0
        assert f"stopped at step {step}: SIGTERM" in capsys.readouterr().out
        assert run_folder.read_marker(train.folder / "run" / "stopped")["step"] == step
        assert checkpoint.committed(train.folder / "run")[-1].name == f"checkpoint-{step}"
    assert not (train.folder / "run" / "trained").exists(), "what is not done is not stored"
    assert train("run", resume="auto") == 0
    assert recorded(train.folder / "run") == recorded(train.folder / "whole")
    assert run_folder.read_marker(train.folder / "run" / "stopped") is None


@pytest.mark.parametrize(("reason", "is_marked"), [("SIGTERM", True), (f"{LAUNCHER} died", False)])
def test_a_stop_before_the_first_step_leaves_no_checkpoint(train, reason, is_marked):
    """A launcher that died did not ask for the stop: the run may be started again."""
    stop = StopRequest()
    stop.request(reason)
    assert train("run", stop) == 0 and checkpoint.numbered(train.folder / "run") == []
    assert (run_folder.read_marker(train.folder / "run" / "stopped") is not None) is is_marked


def test_a_stop_while_it_scores_waits_for_no_more_documents(train, monkeypatch):
    (train.folder / "held.txt").write_text("three one two " * 60)
    stop, scored = StopRequest(), []

    def score(*_):
        return distributed_map.distributed_map(
            lambda _: (scored.append(1), stop.request("SIGINT")), range(5)
        )

    monkeypatch.setattr("tape_ds.training.held_out.score_variants", score)
    assert train("run", stop, eval_data=f"text:{train.folder}/held.txt") == 0
    assert scored == [1] and checkpoint.numbered(train.folder / "run") == []


def test_a_run_that_has_ended_is_not_begun_again(train):
    assert train() == 0
    with pytest.raises(NothingToDo, match="finished already, at step 6"):
        train(resume="auto")
    assert train(resume="auto", max_steps=8, resume_anyway=True) == 0
    assert run_folder.read_marker(train.folder / "run" / "finished")["step"] == 8


def test_another_run_s_folder_is_refused_or_cleared(train):
    assert train() == 0
    with pytest.raises(
        UserError, match=r"holds checkpoints of an earlier run: checkpoint-4, checkpoint-6"
    ):
        train(learning_rate=0.5)
    anew = "--start_anew to remove that, or another output_dir"
    with pytest.raises(
        UserError, match=rf"(?s)holds checkpoints of an earlier run.*remedy: {anew}"
    ):
        train(method="yarn")
    assert run_folder.read_marker(train.folder / "run" / "finished") is not None, (
        "nothing was touched"
    )
    assert train(learning_rate=0.5, start_anew=True, max_steps=2) == 0
    assert [folder.name for folder in checkpoint.numbered(train.folder / "run")] == ["checkpoint-2"]


def contents(folder):
    """Every file below a folder, without its locks, and what it holds."""
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != run_folder.RANKS
    )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("method", ["norms", "yarn"])
def test_what_an_earlier_run_left_is_never_replaced_unasked(train, method, capsys):
    """A run whose checkpoints were removed to save room (or that has none): a new one in its folder replaced its
    weights, metrics and results, and took a person's notes there with them."""
    fields = {"save_strategy": "no", "method": method}
    other = fields | ({"learning_rate": 0.5} if method == "norms" else {"target_length": 256})
    run = train.folder / "run"
    assert train(**fields) == 0
    notes = run / "trained" / "notes.txt"
    notes.write_text("my own notes")
    before = contents(run)

    assert "an earlier run's finished, " in refusal(train, **other)
    wrong = refusal(train, **other, resume="auto")
    assert "it is finished" in wrong and ("learning_rate was 0.001 and is 0.5" in wrong) == (
        method == "norms"
    )
    assert "what no run is known to have written: trained/notes.txt" in refusal(
        train, **other, start_anew=True
    )
    with pytest.raises(NothingToDo, match="finished already"):
        train(**fields, resume="auto")
    assert contents(run) == before

    notes.rename(run / "notes.txt")
    (run / "results" / "notes.txt").write_text("also mine")
    capsys.readouterr()
    assert train(**other, start_anew=True) == 0
    removing = next(
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("start_anew: removing")
    )
    assert "finished" in removing and "results/ (" in removing and "trained/ (" in removing
    assert (run / "notes.txt").read_text() == "my own notes"
    assert (run / "results" / "notes.txt").read_text() == "also mine"
    assert (run / "trained" / "trained.json").is_file() and not (
        run / "trained" / "notes.txt"
    ).exists()


def test_a_run_of_an_older_version_is_removed_by_start_anew(train):
    """It kept no list of its weights' files, and no option could begin a run in its folder."""
    run = train.folder / "run"
    assert train(save_strategy="no") == 0
    (run / run_folder.BEGUN).unlink()
    notes = run / "trained" / "notes.txt"
    notes.write_text("my own notes")
    before = contents(run)
    wrong = refusal(train, save_strategy="no", start_anew=True)
    assert (
        "what no run is known to have written: trained/notes.txt\n" in wrong
        and contents(run) == before
    )
    notes.unlink()
    wrong = refusal(train, save_strategy="no")
    assert "an earlier run's finished, " in wrong and "--start_anew to remove that" in wrong
    assert train(save_strategy="no", start_anew=True, max_steps=2) == 0
    assert run_folder.read_marker(run / run_folder.FINISHED)["step"] == 2


def refusal(train, **changes):
    """Why a run is refused before it reads anything."""
    with pytest.raises(UserError) as caught:
        train(**changes)
    return str(caught.value)


def test_a_person_s_files_in_a_new_folder_are_refused_by_name(train):
    """No run has been there: not even --start_anew takes them for its own."""
    run = train.folder / "run"
    mine = {
        "trained/model.bin": "m",
        "results/run.json": "{}",
        "metrics.jsonl": "1",
        "checkpoint-500/optimizer.pt": "o",
    }
    for name, text in mine.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    before = contents(run)
    for changes in ({}, {"start_anew": True}, {"method": "yarn"}):
        wrong = refusal(train, **changes)
        assert (
            "trained/model.bin" in wrong
            and "results/run.json" in wrong
            and "metrics.jsonl" in wrong
        )
    assert "checkpoint-500/optimizer.pt" in refusal(train, start_anew=True)
    assert contents(run) == before


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(train, monkeypatch, capsys):
    """As keep_alive starts it, without a flag; what its first attempt measured is kept."""

    def dies(_):
        raise RuntimeError("a GPU fell off the bus")

    fields = {"save_strategy": "no", "logging_steps": 1}
    run = train.folder / "run"
    with monkeypatch.context() as patched:
        at_step(patched, 3, dies)
        with pytest.raises(RuntimeError, match="bus"):
            train(**fields)
    first = (run / "metrics.jsonl").read_text()
    assert len(first.splitlines()) == 2
    wrong = refusal(train, **fields)
    assert (
        "an earlier run's metrics.jsonl" in wrong
        and "--resume auto to begin the same run again" in wrong
    )
    assert "seed was 42 and is 7" in refusal(train, **fields, seed=7, resume="auto")
    capsys.readouterr()
    assert train(**fields, resume="auto") == 0
    assert "the metrics so far are kept in metrics-1.jsonl" in capsys.readouterr().out
    assert (run / "metrics-1.jsonl").read_text() == first
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (
        losses[:2] == [json.loads(line)["loss"] for line in first.splitlines()] and len(losses) == 6
    )


def test_a_person_s_files_next_to_trained_weights_stay_when_these_are_written_again(train):
    """A finished run is scored and reported again: the folder of its weights was replaced whole."""
    assert train() == 0
    folder = train.folder / "run" / "trained"
    (folder / "plots").mkdir()
    (folder / "plots" / "mine.txt").write_text("mine")
    assert train(resume="true") == 0
    assert (folder / "plots" / "mine.txt").read_text() == "mine"
    assert (folder / "trained.safetensors").is_file() and not folder.with_name(
        "trained.replaced"
    ).exists()


def test_a_checkpoint_of_another_folder_is_not_resumed_into_an_earlier_run(train):
    assert train("first") == 0 and train("second", learning_rate=0.5) == 0
    before = contents(train.folder / "second")
    wrong = refusal(train, output="second", resume=train.folder / "first" / "checkpoint-4")
    assert "it holds checkpoints of an earlier run: checkpoint-4, checkpoint-6" in wrong
    assert (
        "learning_rate was 0.5 and is 0.001" in wrong
        and contents(train.folder / "second") == before
    )
    assert train("third", resume=train.folder / "first" / "checkpoint-4") == 0


@pytest.mark.parametrize(
    "text, kept", [("", False), ("before the change", False), ("before-the-change", True)]
)
def test_a_person_asks_for_a_checkpoint(train, monkeypatch, text, kept):
    """A file in the run's folder; with a name in it the checkpoint stays for ever."""
    folder = train.folder / "run"
    at_step(monkeypatch, 1, lambda _: (folder / run_folder.SAVE_NOW).write_text(text))
    monkeypatch.setattr("tape_ds.resilience.stopping._WRITING_SECONDS", 0)
    assert train(save_total_limit=1, keep_steps=[3], keep_every=4) == 0
    steps = [checkpoint.step_of(each) for each in checkpoint.committed(folder)]
    assert steps == ([1] if kept else []) + [3, 4, 6]
    assert not (folder / run_folder.SAVE_NOW).exists()


def test_a_limit_on_files_costs_the_save_and_not_the_run(train, monkeypatch, capsys):
    """EFBIG, as of ``ulimit -f``: training ended in its save, with a traceback."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    at_step(monkeypatch, 1, lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1])))
    at_step(monkeypatch, 4, lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, usual))
    try:
        assert train() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    printed = capsys.readouterr().out
    assert printed.count("CHECKPOINT NOT SAVED") == 1
    assert "this process may write files of 4.00 KiB at most (ulimit -f)" in printed
    steps = [checkpoint.step_of(folder) for folder in checkpoint.committed(train.folder / "run")]
    assert steps == [4, 6] and (train.folder / "run" / run_folder.FINISHED).exists()


def test_a_run_without_one_checkpoint_is_not_finished(train, monkeypatch, capsys):
    """It ended with 0 and the marker ``finished``, though every save had failed."""

    def too_large(content, path):
        raise OSError(errno.EFBIG, "File too large", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(saving, "save_pickle", too_large)
        assert train() == 2
    printed = capsys.readouterr().out
    assert (
        printed.count("CHECKPOINT NOT SAVED") == 3
        and "all 3 saves failed, so there is NO checkpoint" in printed
    )
    output = train.folder / "run"
    assert (output / "trained" / "trained.json").is_file() and not (
        output / run_folder.FINISHED
    ).exists()

    with monkeypatch.context() as patched:  # once is enough
        at_step(patched, 4, lambda _: patched.setattr(saving, "save_pickle", too_large))
        assert train(output="other") == 0
    assert [folder.name for folder in checkpoint.committed(train.folder / "other")] == [
        "checkpoint-2"
    ]
    assert (train.folder / "other" / run_folder.FINISHED).exists()


def test_weights_that_cannot_be_written_are_a_message(train, monkeypatch):
    def too_large(*arguments, **settings):
        raise RuntimeError("File too large (os error 27)")  # as tokenizers has it

    monkeypatch.setattr("tape_ds.training.callbacks.replace_trained", too_large)
    with pytest.raises(DiskError, match=r"output_dir = .*/run/trained'.* too large"):
        train()
    assert not (train.folder / "run" / run_folder.FINISHED).exists()


def poison(trainer):
    """Make every gradient NaN from the step on that is being taken."""
    parameter = next(
        parameter for parameter in trainer.model.parameters() if parameter.requires_grad
    )
    return parameter.register_hook(lambda gradient: gradient * math.nan)


def test_steps_that_are_not_finite_end_the_run(train, monkeypatch, capsys):
    """From step 3 on every gradient is NaN: left out, counted, and after two in a row the end, with weights intact."""
    at_step(monkeypatch, 3, poison)
    assert train(nonfinite_limit=2, logging_steps=1) == 3
    printed = capsys.readouterr().out
    assert (
        "step 3: a gradient" in printed
        and "step SKIPPED, weights unchanged (1 so far, 1 in a row)" in printed
    )
    lines = [
        json.loads(line)
        for line in (train.folder / "run" / run_folder.NONFINITE).read_text().splitlines()
    ]
    assert [(line["step"], line["samples"]["0"]) for line in lines] == [
        (3, [8, 9, 10, 11]),
        (4, [12, 13, 14, 15]),
    ]
    assert (
        not (train.folder / "run" / "trained").exists()
        and run_folder.read_marker(train.folder / "run" / "finished") is None
    )
    newest = checkpoint.committed(train.folder / "run")[-1]
    assert all(
        tensor.isfinite().all() for tensor in load_file(newest / "trained.safetensors").values()
    )


@pytest.mark.parametrize("action", ["warn", "skip"])
def test_a_spike_is_reported_and_skipped_if_asked(train, monkeypatch, capsys, action):
    monkeypatch.setattr(spikes, "FEWEST", 3)
    original = Trainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        return original(self, *args, **kwargs) + (50 if self.state.global_step == 4 else 0)

    monkeypatch.setattr(Trainer, "compute_loss", compute_loss)
    assert train(spike_action=action, logging_steps=1, spike_window=8) == 0
    printed = capsys.readouterr().out
    assert "step 5: the loss" in printed and ("step SKIPPED, weights unchanged" in printed) == (
        action == "skip"
    )
    lines = [
        json.loads(line)
        for line in (train.folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert lines[4]["loss"] > 50, "the loss itself is logged"
    assert [line["skipped"] for line in lines] == [
        0,
        0,
        0,
        0,
        *([1, 1] if action == "skip" else [0, 0]),
    ]
    assert not (train.folder / "run" / run_folder.NONFINITE).exists()


class Harm:
    """What a pickle would run."""

    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth"])
def test_a_malicious_file_is_never_executed(train, name, capsys):
    """Also if the manifest was written again."""
    assert train() == 0
    folder = train.folder / "run" / "checkpoint-4"
    torch.save({"state": Harm()}, folder / name)
    manifest = checkpoint.read(folder)
    files = {**manifest.files, name: checkpoint.entry(folder / name)}
    dataclasses.replace(manifest, files=files).write(folder)
    capsys.readouterr()
    with pytest.raises(UserError, match=f"{name} in it holds more than states, and was not loaded"):
        train(resume=str(folder), output="other")
    assert "executed" not in capsys.readouterr().out


def test_a_save_on_its_way_is_committed_when_a_guard_stops_the_run(train, monkeypatch):
    """Every save waits until its end is awaited, as one in the background may."""
    begin = Saver.begin

    def start(self, *args, **kwargs):
        part = begin(self, *args, **kwargs)
        part.write("late.txt", lambda path: (time.sleep(0.3), path.write_text("late")))
        return part

    monkeypatch.setattr(Saver, "begin", start)
    at_step(monkeypatch, 3, poison)
    assert train(async_save=True, nonfinite_limit=1) == 3
    assert [folder.name for folder in checkpoint.committed(train.folder / "run")] == [
        "checkpoint-2"
    ]


@pytest.mark.parametrize("harm", [False, True])
def test_checkpoints_after_the_resumed_one_are_set_aside(train, monkeypatch, harm):
    """Named older ones, and those that are damaged: the next ``auto`` must not find them, nor retention count them."""
    folder = train.folder / "run"
    assert train(save_total_limit=3) == 0
    whole = recorded(folder)
    for marker in ("finished", "stopped"):
        (folder / marker).unlink(missing_ok=True)
    if harm:
        for step in (4, 6):
            (folder / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    stop = StopRequest()
    at_step(monkeypatch, 3, lambda _: stop.request("SIGTERM"))
    asked = "auto" if harm else str(folder / "checkpoint-2")
    assert train("run", stop, resume=asked, save_total_limit=1) == 0
    assert [each.name for each in checkpoint.committed(folder)] == ["checkpoint-3"]
    assert all((folder / f"checkpoint-{step}.abandoned").is_dir() for step in (4, 6))
    assert train("run", resume="auto") == 0
    assert recorded(folder) == whole


def test_a_stop_on_a_full_disk_is_no_error_of_another_kind(train, monkeypatch, capsys):
    """Neither checkpoint nor marker can be written: exit code 1, and a message."""
    stop = StopRequest()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill(_):
        stop.request("SIGTERM")
        monkeypatch.setattr(storage, "write_text", full)

    at_step(monkeypatch, 3, fill)
    assert train("run", stop) == 1
    printed = capsys.readouterr().out
    assert "NO checkpoint could be saved; checkpoint-2 is the newest" in printed
    assert "stopped cannot be written: the disk" in printed


def test_a_setting_that_may_change_takes_effect(train):
    """Optimizer and scheduler bring the old ones back: another rate was announced, and never used."""
    plain = {
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "logging_steps": 1,
    }
    assert train(**plain, max_steps=2) == 0
    changed = plain | {"learning_rate": 0.002, "weight_decay": 0.25}
    with pytest.raises(UserError) as caught:
        train(**changed, resume="auto")
    assert {problem.field for problem in caught.value.problems} == {
        "learning_rate",
        "weight_decay",
        "max_steps",
    }
    assert train(**changed, resume="auto", resume_anyway=True) == 0
    lines = [
        json.loads(line)
        for line in (train.folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["learning_rate"] for line in lines] == [0.01] * 2 + [0.002] * 4
    groups = torch.load(train.folder / "run" / "checkpoint-6" / "optimizer.pt", weights_only=True)[
        "param_groups"
    ]
    assert {group["weight_decay"] for group in groups} <= {0.25, 0.0}


def test_the_rate_that_is_logged_is_the_one_that_was_used(train, monkeypatch):
    """An engine that makes the optimizer from its configuration's block moves the schedule on within its own step: the
    next step's rate was stored."""
    forward = Trainer.training_step

    def with_an_engine_s_schedule(self, *args, **kwargs):
        loss = forward(self, *args, **kwargs)
        if self.accelerator.sync_gradients:  # the step's last micro-batch
            self.lr_scheduler.step()
        return loss

    monkeypatch.setattr(Trainer, "training_step", with_an_engine_s_schedule)
    rising = {"learning_rate": 0.01, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3}
    assert train(**rising, max_steps=3, logging_steps=1, save_strategy="no") == 0
    lines = (train.folder / "run" / "metrics.jsonl").read_text().splitlines()
    # each step moves it on twice, by the engine and by the trainer
    assert [json.loads(line)["learning_rate"] for line in lines] == pytest.approx(
        [0.0, 0.02 / 3, 0.01]
    )
