"""The trainer without an engine: data in order, exact resume, honest logs."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

from tape_ds import TapeForCausalLM
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.config.sections import Optimization
from tape_ds.data.order import collate
from tape_ds.errors import UserError
from tape_ds.methods.distillation import Teacher
from tape_ds.methods.prepare import prepare_model
from tape_ds.results import WITHOUT_UPDATES
from tape_ds.training.callbacks import PositionUpdates, Progress
from tape_ds.training.held_out import (
    EvalDocument,
    loss_by_position,
    read_scores,
)
from tape_ds.training.trainer import TapeTrainer
from tests.methods.test_methods import settings
from tests.models.helpers import tiny_config, tokens

LENGTH, STEPS = 16, 6


class Sequences(torch.utils.data.Dataset):
    """Sequence i depends on i alone; records which sequences were asked for."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 2 * STEPS

    def __getitem__(self, index):
        self.asked.append(index)
        ids = torch.randint(3, 61, (LENGTH,), generator=torch.Generator().manual_seed(index))
        places = torch.arange(LENGTH)
        return {
            "input_ids": ids,
            "labels": ids.clone(),
            "position_ids": places,
            "document_ids": 0 * places,
        }


def build(
    folder,
    sequences=None,
    method="tape",
    lora_alpha=4,
    optimization=None,
    teacher=None,
    weights=None,
    **changes,
) -> TapeTrainer:
    """A trainer on a tiny model; the same weights each time."""
    torch.manual_seed(5)
    model = TapeForCausalLM(tiny_config(tie_word_embeddings=True, attention_dropout=0.0))
    prepared = prepare_model(
        method, model, settings(train_position=method != "lora", lora_alpha=lora_alpha)
    )
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 2,
            "max_steps": STEPS,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "linear",
            "logging_steps": 1,
            "save_steps": 3,
            "use_cpu": True,
            "report_to": [],
            "logging_nan_inf_filter": False,
            "train_sampling_strategy": "sequential",
            "disable_tqdm": True,
        }
        | changes
    )
    return TapeTrainer(
        record=TrainedRecord(base="base", method=method, names=prepared.names),
        optimization=optimization,
        teacher=teacher,
        target_weights=weights,
        tokens_per_step=2 * LENGTH,
        flops_per_token=1.0,
        model=prepared.model,
        args=arguments,
        train_dataset=sequences or Sequences(),
        data_collator=collate,
    )


def teacher() -> Teacher:
    """The model that :func:`build` starts from, with plain RoPE and fewer native tokens than a sequence has."""
    torch.manual_seed(5)
    config = tiny_config(encoding="rope", tie_word_embeddings=True, attention_dropout=0.0)
    return Teacher(TapeForCausalLM(config), LENGTH // 2, 0.25)


def losses(trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("method", ["tape", "lora", "full"])
def test_resumed_equals_uninterrupted_to_the_last_digit(tmp_path, method):
    """The trained weights come back from whichever files the method saves, and every group continues."""
    own = Optimization(position_learning_rate="3x", position_weight_decay=0.2)
    whole = build(tmp_path / "whole", method=method, optimization=own, weight_decay=0.1)
    whole.train()
    sequences = Sequences()
    rest = build(tmp_path / "rest", sequences, method=method, optimization=own, weight_decay=0.1)
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert losses(rest)[-3:] == losses(whole)[-3:]
    assert sequences.asked == list(range(6, 12)), "sequences of the first half were read again"
    for (name, mine), other in zip(
        rest.model.named_parameters(), whole.model.parameters(), strict=True
    ):
        assert torch.equal(mine, other), name


def test_a_distilled_run_goes_on_to_the_last_digit(tmp_path):
    """Its checkpoint is between two logging steps: the sums of both parts are in it."""
    changes = {"logging_steps": 2, "gradient_accumulation_steps": 2}
    whole, alone = (
        build(tmp_path / name, teacher=each, **changes)
        for name, each in [("a", teacher()), ("b", None)]
    )
    names = set(whole.model.state_dict())
    for each in (whole, alone):
        each.train()
    rest = build(tmp_path / "rest", teacher=teacher(), **changes)
    rest.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    whole_log, rest_log = (
        [each for each in run.state.log_history if "loss" in each] for run in (whole, rest)
    )
    for name in ("loss", "cross_entropy", "divergence"):
        assert [each[name] for each in whole_log] == [each[name] for each in rest_log]
    assert losses(whole) != losses(alone)
    for each in whole_log:
        assert each["loss"] == pytest.approx(
            0.75 * each["cross_entropy"] + 0.25 * each["divergence"], rel=1e-5
        )
    for (name, mine), other in zip(
        rest.model.named_parameters(), whole.model.parameters(), strict=True
    ):
        assert torch.equal(mine, other), name
    assert set(whole.model.state_dict()) == names, "the teacher is no part of the model"


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    """The same parameters with another meaning: every tensor would find its place, and the run continue with the wrong
    model. So of adapters of another scale."""
    build(tmp_path / "one", max_steps=3).train()
    other = build(tmp_path / "other")
    other.model.config.rope_parameters = {**other.model.config.rope_parameters, "rope_theta": 5e5}
    with pytest.raises(UserError, match="differs in rope_parameters"):
        other.train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-3"))
    build(tmp_path / "lora", method="lora", max_steps=3).train()
    for changes, field in (({"lora_alpha": 8}, "lora_alpha"), ({"method": "full"}, "method")):
        with pytest.raises(UserError, match=f"differs in {field}"):
            build(tmp_path / "other", **({"method": "lora"} | changes)).train(
                resume_from_checkpoint=str(tmp_path / "lora" / "checkpoint-3")
            )


def test_a_base_that_was_moved_is_the_same_by_its_weights(tmp_path):
    """As one that each job copies to a disk of its machine; another one is refused."""

    def based_on(base, files, output):
        trainer = build(tmp_path / output)
        trainer.record = replace(trainer.record, base=base, base_files=files)
        return trainer

    based_on("/scratch/job1/base", {"model.safetensors": "a"}, "one").train()
    folder = str(tmp_path / "one" / "checkpoint-3")
    based_on("/scratch/job2/base", {"model.safetensors": "a"}, "moved").train(
        resume_from_checkpoint=folder
    )
    for files in ({"model.safetensors": "b"}, None):
        with pytest.raises(UserError, match="differs in base"):
            based_on("/scratch/job2/base", files, "other").train(resume_from_checkpoint=folder)


def test_the_schedule_scales_every_rate_and_both_are_logged(tmp_path):
    trainer = build(tmp_path, method="full", optimization=Optimization(position_learning_rate=0.04))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["learning_rate"] for entry in logged] == pytest.approx(
        [0.01 * (1 - i / STEPS) for i in range(STEPS)]
    )
    assert [entry["position_learning_rate"] for entry in logged] == pytest.approx(
        [4 * entry["learning_rate"] for entry in logged]
    )


def test_position_updates_are_measured_eight_times_a_run(tmp_path):
    """In the metrics and in the history that a resumed run continues; losses are the same as without."""
    trainer = build(tmp_path / "16", max_steps=16)
    trainer.add_callback(PositionUpdates(trainer.train_dataset[0]))
    trainer.add_callback(Progress(trainer, tmp_path / "metrics.jsonl"))
    trainer.train()
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in entries if "position_updates" in each] == [
        2,
        4,
        6,
        8,
        10,
        12,
        14,
        16,
    ]
    assert any("position_updates" in entry for entry in trainer.state.log_history)
    found = entries[-1]["position_updates"]
    assert set(found) == {"deviation", "along_own", "first_token"}
    assert found["deviation"][0] == 0 and all(share > 0 for share in found["deviation"][1:])
    plain = build(tmp_path / "plain", max_steps=16)
    plain.train()
    assert losses(trainer) == losses(plain)


def test_metrics_hold_each_step_once(tmp_path):
    """Steps after the checkpoint are run again when a killed run resumes; an earlier run's lines are not this one's."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 500, "loss": 1.0}\n')
    first = build(tmp_path, max_steps=5)
    first.add_callback(Progress(first, file))
    first.train()
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5]
    assert all(entry["tokens_per_second"] > 0 and entry["mfu"] is None for entry in entries)
    assert entries[-1]["tokens"] == 5 * 2 * LENGTH and first.peak_memory_bytes >= 2**20
    with file.open("a") as cut:
        cut.write('{"step": 6, "lo')
    rest = build(tmp_path)
    rest.add_callback(Progress(rest, file))
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_nan_is_shown_and_never_averaged_away(tmp_path, capsys):
    """transformers' default filter replaces a NaN loss by the mean of the ones before."""
    trainer = build(tmp_path, max_steps=2)
    with torch.no_grad():
        trainer.model.model.norm.weight.fill_(math.nan)
    trainer.add_callback(Progress(trainer, tmp_path / "metrics.jsonl"))
    trainer.train()
    assert "loss     NaN" in capsys.readouterr().out
    assert math.isnan(losses(trainer)[0])


def test_loss_by_position_before_and_after(tmp_path):
    """Untouched and untrained are scored before the first step, with the weights of then; the trained model after."""
    trainer = build(tmp_path, max_steps=2)
    file = tmp_path / "scores.json"
    rope = dict(trainer.model.config.rope_parameters)
    stretched = rope | {"rope_type": "linear", "factor": 2.0}
    documents = [EvalDocument("a", tokens(1, 40)), EvalDocument("b", tokens(1, 40))]
    before = {"untouched": rope, "linear x2, untrained": stretched}
    after = {"tape, trained, updates off": WITHOUT_UPDATES, "tape, trained": None}
    trainer.add_callback(loss_by_position(documents, 16, before, after, file))
    trainer.train()
    scores = read_scores(file)
    assert list(scores) == ["untouched", "linear x2, untrained", *after]
    assert scores["tape, trained, updates off"]["a"].nll != scores["tape, trained"]["a"].nll
    assert all(set(parts) == {"a", "b"} for parts in scores.values())
    assert (
        scores["untouched"]["a"].nll
        != scores["linear x2, untrained"]["a"].nll
        != scores["tape, trained"]["a"].nll
    )


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_go_on_alike_whatever_their_number_was(tmp_path, world, monkeypatch):
    """A rank that counted otherwise than the others would leave them alone in a collective. Two ranks had saved: as two
    again each has its own sum, else all have the mean. Every rank opened every rank's file: of 64, 4,096 times."""
    trainer = build(tmp_path / "new")
    opened = []
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **options: opened.append(path.name) or read(path, **options)
    )
    sent = []
    monkeypatch.setattr(trainer.rank_sync, "first", lambda own: sent.append(own) or sent[0])
    for rank, loss in enumerate((1.0, 4.0)):
        left = {**trainer.guards.nonfinite.state(), "in_a_row": 2, "total": 3 + rank}
        content = {
            "loss": loss.hex(),
            "total_loss": (8.0).hex(),
            "last_logged": 2,
            "nonfinite": left,
        }
        content |= {"spikes": trainer.guards.spikes.state(), "protection": None}
        (tmp_path / f"rank_state_{rank}.json").write_text(json.dumps(content))
    trainer._resumed, trainer._tr_loss = tmp_path, torch.zeros(())
    expected = {1: [[0, 1]], 2: [[0, 0], [0, 1]], 3: [[0, 1], [], []]}[world]
    for rank in range(world):
        vars(trainer.rank_sync).update(rank=rank, world=world)
        opened.clear()
        trainer.load_rank_state()
        assert opened == [f"rank_state_{number}.json" for number in expected[rank]]
        assert trainer._tr_loss.item() == ((1.0, 4.0)[rank] if world == 2 else 2.5)
        assert trainer.guards.nonfinite.state() == {"total": 3, "in_a_row": 2}


def test_ranks_without_stored_random_states_draw_different_numbers(tmp_path, monkeypatch):
    """A checkpoint that was made for another number of ranks holds none."""
    trainer, drawn = build(tmp_path / "new"), []
    trainer._resumed = tmp_path
    for rank in (0, 1, 0):
        vars(trainer.rank_sync).update(rank=rank, world=2)
        trainer.load_rank_state()
        drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[2] != drawn[1]
    torch.save({}, tmp_path / trainer.rng_file)
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    trainer.load_rank_state()
    assert torch.rand(()) == expected, "what is stored is for the base class to load"


def test_private_methods_of_the_base_class_that_are_overridden():
    """Each may change with every version of transformers: four, and no more."""
    own = {name for name in vars(TapeTrainer) if name.startswith("_") and not name.startswith("__")}
    assert own & set(dir(Trainer)) == {
        "_load_from_checkpoint",
        "_maybe_log_save_evaluate",
        "_prepare_for_training",
        "_save_checkpoint",
    }
