"""The trainer's half of a recipe: contradictions in it and in the DeepSpeed JSON, and what follows from the batch."""

from pathlib import Path

import pytest

from tape_ds.errors import UserError
from tests.config.helpers import json_file, problems_of, write
from tests.config.loads import extension as load


def test_the_global_batch_decides_and_accumulation_follows(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [load(["--recipe", write()], world).accumulation() for world in (None, 1, 4)] == [
        2,
        4,
        1,
    ]
    with pytest.raises(UserError, match="global_batch_size"):
        load(["--recipe", write()], 3)
    assert load(["--recipe", write(without=("global_batch_size",))]).global_batch_size == 4


def test_values_that_the_json_shares_with_the_trainer_may_agree():
    optimizer = {
        "type": "AdamW",
        "params": {"lr": 3e-4, "betas": [0.9, 0.999], "eps": "auto", "torch_adam": True},
    }
    path = json_file(
        train_batch_size=8, gradient_clipping=1.0, bf16={"enabled": True}, optimizer=optimizer
    )
    optimizer["params"]["weight_decay"] = "auto"  # the trainer's
    assert load(["--recipe", write(deepspeed=path)]).deepspeed["optimizer"] == optimizer


def test_the_old_name_of_checkpointing_is_understood():
    kwargs = load(["--recipe", write(gradient_checkpointing=True)]).trainer.kwargs
    assert kwargs["activation_checkpointing"] is True and "gradient_checkpointing" not in kwargs
    found, _ = problems_of(
        "--recipe", write(gradient_checkpointing=True, activation_checkpointing=False)
    )
    assert "gradient_checkpointing" in found


def test_training_arguments_are_transformers_own(tmp_path):
    recipe = load(["--recipe", write(output_dir=str(tmp_path / "out"), deepspeed=None)])
    built = recipe.training_arguments()
    assert (
        built.gradient_accumulation_steps,
        built.per_device_train_batch_size,
        built.max_steps,
    ) == (4, 2, 4)
    assert built.logging_nan_inf_filter is False and built.remove_unused_columns is False
    assert built.report_to == [] and built.seed == 42 and built.save_strategy == "steps"
    assert not (tmp_path / "out").exists()


def test_what_transformers_refuses_is_a_user_error():
    recipe = load(["--recipe", write(debug="nonsense", deepspeed=None)])
    with pytest.raises(UserError, match="nonsense"):
        recipe.training_arguments()


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path):
    for name in (
        "checkpoint-10",
        "checkpoint-9",
        "checkpoint-12.abandoned",
        "checkpoint-11.writing",
    ):
        (tmp_path / "out" / name).mkdir(parents=True)
    recipe = write(resume_from_checkpoint="checkpoint-8", output_dir=str(tmp_path / "out"))
    problems, _ = problems_of("--recipe", recipe)
    assert problems["resume_from_checkpoint"].remedy.endswith("has checkpoint-9, checkpoint-10")


def test_resuming_takes_true_or_a_path(tmp_path):
    assert (
        load(["--recipe", write(), "--resume_from_checkpoint"]).trainer.resume_from_checkpoint
        is True
    )
    assert load(["--recipe", write()]).trainer.resume_from_checkpoint is None
    (tmp_path / "checkpoint-3").mkdir()
    recipe = load(["--recipe", write(resume_from_checkpoint="checkpoint-3")])
    assert recipe.trainer.resume_from_checkpoint == "checkpoint-3"


def test_what_is_left_to_the_plan_is_written_as_it_was():
    """Rules and accumulation go by the values that need least memory."""
    words = [
        "--deepspeed",
        "auto",
        "--activation_checkpointing",
        "auto",
        "--per_device_train_batch_size",
        "auto",
    ]
    recipe = load([*words, "--checkpoint_layers", "selective"], world_size=2)
    assert recipe.open == {"deepspeed", "activation_checkpointing", "per_device_train_batch_size"}
    assert recipe.deepspeed["zero_optimization"]["stage"] == 3 and recipe.accumulation() == 4
    stored = recipe.as_dict()
    assert {stored[name] for name in recipe.open} == {
        "auto"
    } and "activation_checkpointing_kwargs" not in stored
    path = Path("again.yaml")
    path.write_text(recipe.to_yaml())
    again = load(["--recipe", str(path)], world_size=2)
    assert again.open == recipe.open and again.deepspeed == recipe.deepspeed
    assert "activation_checkpointing_kwargs" not in again.as_dict()
