"""The mean of checkpoints: that of every tensor, in the model and in what is saved."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tape_ds.checkpoint import averaging, trained
from tape_ds.training.callbacks import AverageLast, SaveTrained
from tests.training.test_trainer import STEPS, build


def test_the_steps_that_save():
    assert averaging.scheduled(10, 4) == [4, 8, 10]
    assert averaging.scheduled(8, 4) == [4, 8]
    assert averaging.scheduled(10, 4, [3, 11]) == [3, 4, 8, 10]
    assert averaging.scheduled(3, 500) == [3]


def run(folder, method="full", count=3, resume=None, **changes):
    """A run that saves every second step, and the mean of its last checkpoints."""
    trainer = build(folder, method=method, save_steps=2, **changes)
    trainer.add_callback(AverageLast(trainer, Path(folder), count))
    trainer.add_callback(SaveTrained(trainer, Path(folder) / "trained", Path(folder) / "none"))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def tensors(folder):
    return {
        name: each
        for file in folder.glob("*.safetensors")
        for name, each in load_file(file).items()
    }


def exact_mean(folder, steps):
    saved = [tensors(folder / f"checkpoint-{step}") for step in steps]
    return {name: sum(each[name].double() for each in saved) / len(saved) for name in saved[0]}


@pytest.mark.parametrize("method", ["full", "tape", "lora"])
def test_what_is_saved_is_the_mean_of_the_last_checkpoints(tmp_path, method):
    """Of a whole model with tied embeddings, of groups, and of adapters; the model that is scored has the same."""
    trainer = run(tmp_path, method)
    expected, found = exact_mean(tmp_path, (2, 4, 6)), tensors(tmp_path / "trained")
    assert found.keys() == expected.keys()
    for name, mean in expected.items():
        torch.testing.assert_close(found[name].double(), mean, rtol=2e-7, atol=1e-9, msg=name)
    last = tensors(tmp_path / "checkpoint-6")
    assert any(not torch.equal(found[name], last[name]) for name in found)
    again = trained.gather(trainer.model, trainer.record.names)
    assert set(again) == set(trainer.record.names)
    if method == "full":
        assert all(torch.equal(again[name], found[name]) for name in found)


def test_a_resumed_run_ends_with_the_same_mean(tmp_path):
    """Also where it was stopped, and saved, at a step in between."""
    whole = run(tmp_path / "whole")
    first = build(tmp_path / "rest", method="full", save_steps=2, max_steps=STEPS)
    first.safety = first.safety.model_copy(update={"keep_steps": [3]})
    first.train()
    for step in (4, 6):
        (tmp_path / "rest" / f"checkpoint-{step}").rename(tmp_path / f"later-{step}")
    rest = run(tmp_path / "rest", resume=str(tmp_path / "rest" / "checkpoint-3"))
    assert (tmp_path / "rest" / "checkpoint-3").is_dir()
    for mine, other in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert rest.record.averaged == whole.record.averaged


def test_the_record_says_of_what(tmp_path):
    """And a run without a mean writes what older versions read."""
    run(tmp_path / "mean", count=2)
    record = trained.read_record(tmp_path / "mean" / "trained")
    assert list(record.averaged) == [
        "checkpoint-4/model.safetensors",
        "checkpoint-6/model.safetensors",
    ]
    build(tmp_path / "plain", method="full", max_steps=2, save_steps=2).train()
    plain = json.loads((tmp_path / "plain" / "checkpoint-2" / trained.RECORD).read_text())
    assert "averaged" not in plain


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_checkpoint_that_cannot_be_read_leaves_the_last_step_s_weights(tmp_path, damage, capsys):
    """No mean of the others, and no half of one: it is said, and the run keeps its result."""
    trainer = build(tmp_path, method="full", save_steps=2)
    average = AverageLast(trainer, tmp_path, 3)

    class Damage(AverageLast):
        def on_train_end(self, *arguments, **named):
            folder = tmp_path / "checkpoint-4"
            if damage == "missing":
                folder.rename(tmp_path / "gone")
            else:
                file = folder / "model.safetensors"
                save_file({name: each + 1 for name, each in load_file(file).items()}, file)
            average.on_train_end(*arguments, **named)

    trainer.add_callback(Damage(trainer, tmp_path, 3))
    trainer.train()
    said = capsys.readouterr().out
    assert "IS NOT TAKEN" in said and "checkpoint-4" in said and damage in said
    last = tensors(tmp_path / "checkpoint-6")
    assert all(
        torch.equal(trainer.model.get_parameter(name).detach(), each) for name, each in last.items()
    )
    assert trainer.record.averaged is None


def test_other_tensors_are_an_error(tmp_path):
    run(tmp_path, "lora")
    model = build(tmp_path / "other", method="full").model
    folders = averaging.last(tmp_path, [2, 4])
    with pytest.raises(ValueError, match="which this model does not train"):
        averaging.put_mean(folders, model, [name for name, _ in model.named_parameters()])
