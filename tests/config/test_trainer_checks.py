"""The trainer's half of a recipe: contradictions in it and in the DeepSpeed JSON, and what follows from the batch."""

import os
from pathlib import Path

import pytest

from tape_ds.config.extension import load
from tape_ds.errors import UserError
from tests.config.helpers import check_malformed, json_file, problems_of, write

# (what to change, expected field, part of the value shown, part of the remedy)
MALFORMED = {
    "saving by epochs": ({"save_strategy": "epoch"}, "save_strategy", "epoch", "save_steps"),
    "no duration": ({"max_steps": 0}, "max_steps", "0", "num_train_epochs"),
    "two durations": ({"num_train_epochs": 1}, "num_train_epochs", "1", "remove one"),
    "warm-up too long": ({"warmup_steps": 9}, "warmup_steps", "9", "fewer"),
    "batch not divisible": ({"global_batch_size": 7}, "global_batch_size", "7", "per_device_train_batch_size: 1"),
    "other accumulation": ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps", "3", "follows"),
    "two precisions": ({"fp16": True}, "fp16", "True", "keep one"),
    "nan filter": ({"logging_nan_inf_filter": True}, "logging_nan_inf_filter", "True", "remove it"),
    "columns": ({"remove_unused_columns": True}, "remove_unused_columns", "True", "remove it"),
    "sampling": ({"train_sampling_strategy": "random"}, "train_sampling_strategy", "random", "seed"),
    "fsdp": ({"fsdp": "full_shard"}, "fsdp", "full_shard", "deepspeed"),
    "token": ({"hub_token": "hf_x"}, "hub_token", "<redacted>", "HF_TOKEN"),
    "reentrant": (
        {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}},
        "activation_checkpointing_kwargs.use_reentrant",
        "True",
        "give false",
    ),
    "unknown tracker": ({"report_to": "wanbd"}, "report_to", "wanbd", "did you mean 'wandb'"),
    "tracker missing": ({"report_to": ["comet_ml"]}, "report_to", "comet_ml", "pip install comet-ml"),
    "no checkpoint": ({"resume_from_checkpoint": "gone"}, "resume_from_checkpoint", "gone", "checkpoint-N"),
    "output is a file": ({"output_dir": "mine.yaml"}, "output_dir", "mine.yaml", "another folder"),
    "no such json": ({"deepspeed": "zero4"}, "deepspeed", "zero4", "did you mean 'zero3'"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_recipe_names_field_value_and_remedy(name):
    check_malformed(*MALFORMED[name])


DEEPSPEED = {
    "unknown at the top": ({"gradient_cliping": 1.0}, "gradient_cliping", "1.0", "gradient_clipping"),
    "unknown in zero": (
        {"zero_optimization": {"stage": 2, "overlap_com": True}},
        "zero_optimization.overlap_com",
        "True",
        "overlap_comm",
    ),
    "unknown two levels down": (
        {"zero_optimization": {"stage": 3, "offload_param": {"devise": "cpu"}}},
        "zero_optimization.offload_param.devise",
        "cpu",
        "device",
    ),
    "unknown where DeepSpeed reads key by key": (
        {"flops_profiler": {"enable": True}},
        "flops_profiler.enable",
        "True",
        "enabled",
    ),
    "wrong type": ({"zero_optimization": {"stage": "three"}}, "zero_optimization.stage", "three", "0, 1, 2"),
    "wrong type of a scalar": ({"steps_per_print": "often"}, "steps_per_print", "often", "whole number"),
    "not a block": ({"bf16": True}, "bf16", "True", "key"),
    "removed": ({"nebula": {"enabled": True}}, "nebula", "enabled", "remove it"),
    "removed in zero": (
        {"zero_optimization": {"stage": 3, "mics_shard_size": 8}},
        "zero_optimization.mics_shard_size",
        "8",
        "remove it",
    ),
    "auto that nothing fills": ({"steps_per_print": "auto"}, "steps_per_print", "auto", "remove the key"),
    "no part in this": ({"hybrid_engine": {"enabled": True}}, "hybrid_engine", "enabled", "remove it"),
    "does nothing": (
        {"activation_checkpointing": {"cpu_checkpointing": True}},
        "activation_checkpointing",
        "cpu_checkpointing",
        "activation_checkpointing: true",
    ),
    "other micro-batch": ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu", "4", '"auto"'),
    "other accumulation": ({"gradient_accumulation_steps": 1}, "gradient_accumulation_steps", "1", '"auto"'),
    "other batch": ({"train_batch_size": 64}, "train_batch_size", "64", '"auto"'),
    "other clipping": ({"gradient_clipping": 0.5}, "gradient_clipping", "0.5", "max_grad_norm"),
    "other precision": ({"bf16": {"enabled": False}}, "bf16.enabled", "False", "bf16"),
    "other rate": (
        {"optimizer": {"type": "AdamW", "params": {"lr": 0.1, "betas": "auto"}}},
        "optimizer.params.lr",
        "0.1",
        "learning_rate",
    ),
    "other optimizer": ({"optimizer": {"type": "Lamb"}}, "optimizer.type", "Lamb", "remove the optimizer"),
    "unknown parameter": (
        {"optimizer": {"type": "AdamW", "params": {"leaning_rate": 1}}},
        "optimizer.params.leaning_rate",
        "1",
        "one of",
    ),
    "other scheduler": ({"scheduler": {"type": "OneCycle"}}, "scheduler.type", "OneCycle", "remove the scheduler"),
    "offload without its stage": (
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        "zero_optimization.offload_param.device",
        "cpu",
        "stage 3",
    ),
    "a value for a block": ({"zero_optimization": {"leaf_module": 3}}, "zero_optimization.leaf_module", "3", "key"),
    "unknown data type": ({"communication_data_type": "fp12"}, "communication_data_type", "fp12", "bf16"),
    "nvme without a path": (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
        "zero_optimization.offload_param.nvme_path",
        "None",
        "NVMe",
    ),
}


@pytest.mark.parametrize("name", DEEPSPEED)
def test_a_malformed_deepspeed_json_names_field_value_and_remedy(name):
    change, field, value, remedy = DEEPSPEED[name]
    found, message = problems_of("--recipe", write(deepspeed=json_file(**change)))
    assert set(found) == {f"deepspeed.{field}"}, message
    assert value in message and remedy in found[f"deepspeed.{field}"].remedy, message


def test_a_key_written_twice_in_the_json():
    Path("ds.json").write_text('{"zero_optimization": {"stage": 1, "stage": 2}}')
    found, _ = problems_of("--recipe", write(deepspeed="ds.json"))
    assert "twice" in found["deepspeed.stage"].wrong


@pytest.mark.parametrize("text, wrong", [("{,}", "line 1"), ("[1]", "not a JSON object"), ('{"a": 1,\n}', "line 2")])
def test_an_unreadable_json_says_where(text, wrong):
    Path("ds.json").write_text(text)
    found, _ = problems_of("--recipe", write(deepspeed="ds.json"))
    assert wrong in found["deepspeed"].wrong


def test_an_output_folder_without_rights(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # root may write anywhere
    found, _ = problems_of("--recipe", write(output_dir="deep/er"))
    assert "not writable" in found["output_dir"].wrong


def test_the_global_batch_decides_and_accumulation_follows(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [load(["--recipe", write()], world).accumulation() for world in (None, 1, 4)] == [2, 4, 1]
    with pytest.raises(UserError, match="global_batch_size"):
        load(["--recipe", write()], 3)
    assert load(["--recipe", write(without=("global_batch_size",))]).global_batch_size == 4


def test_an_accumulation_that_agrees_is_allowed():
    assert load(["--recipe", write(gradient_accumulation_steps=4)]).accumulation() == 4


def test_values_that_the_json_shares_with_the_trainer_may_agree():
    optimizer = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.999], "eps": "auto", "torch_adam": True}}
    path = json_file(train_batch_size=8, gradient_clipping=1.0, bf16={"enabled": True}, optimizer=optimizer)
    assert load(["--recipe", write(deepspeed=path)]).deepspeed["optimizer"] == optimizer


def test_the_old_name_of_checkpointing_is_understood():
    kwargs = load(["--recipe", write(gradient_checkpointing=True)]).trainer.kwargs
    assert kwargs["activation_checkpointing"] is True and "gradient_checkpointing" not in kwargs
    found, _ = problems_of("--recipe", write(gradient_checkpointing=True, activation_checkpointing=False))
    assert "gradient_checkpointing" in found


def test_training_arguments_are_transformers_own(tmp_path):
    recipe = load(["--recipe", write(output_dir=str(tmp_path / "out"), deepspeed=None)])
    built = recipe.training_arguments()
    assert (built.gradient_accumulation_steps, built.per_device_train_batch_size, built.max_steps) == (4, 2, 4)
    assert built.logging_nan_inf_filter is False and built.remove_unused_columns is False
    assert built.report_to == [] and built.seed == 42 and built.save_strategy == "steps"
    assert not (tmp_path / "out").exists()


def test_what_transformers_refuses_is_a_user_error():
    recipe = load(["--recipe", write(debug="nonsense", deepspeed=None)])
    with pytest.raises(UserError, match="nonsense"):
        recipe.training_arguments()


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-12.abandoned", "checkpoint-11.writing"):
        (tmp_path / "out" / name).mkdir(parents=True)
    recipe = write(resume_from_checkpoint="checkpoint-8", output_dir=str(tmp_path / "out"))
    problems, _ = problems_of("--recipe", recipe)
    assert problems["resume_from_checkpoint"].remedy.endswith("has checkpoint-9, checkpoint-10")


def test_resuming_takes_true_or_a_path(tmp_path):
    assert load(["--recipe", write(), "--resume_from_checkpoint"]).resume_from_checkpoint is True
    assert load(["--recipe", write()]).resume_from_checkpoint is False
    (tmp_path / "checkpoint-3").mkdir()
    assert load(["--recipe", write(resume_from_checkpoint="checkpoint-3")]).resume_from_checkpoint == "checkpoint-3"


def test_what_is_left_to_the_plan_is_written_as_it_was():
    """Rules and accumulation go by the values that need least memory."""
    words = ["--deepspeed", "auto", "--activation_checkpointing", "auto", "--per_device_train_batch_size", "auto"]
    recipe = load([*words, "--checkpoint_layers", "selective"], world_size=2)
    assert recipe.open == {"deepspeed", "activation_checkpointing", "per_device_train_batch_size"}
    assert recipe.deepspeed["zero_optimization"]["stage"] == 3 and recipe.accumulation() == 4
    stored = recipe.as_dict()
    assert {stored[name] for name in recipe.open} == {"auto"} and "activation_checkpointing_kwargs" not in stored
    path = Path("again.yaml")
    path.write_text(recipe.to_yaml())
    again = load(["--recipe", str(path)], world_size=2)
    assert again.open == recipe.open and again.deepspeed == recipe.deepspeed
    assert "activation_checkpointing_kwargs" not in again.as_dict()


@pytest.mark.parametrize("field", ["activation_checkpointing", "per_device_train_batch_size", "deepspeed"])
def test_another_word_than_auto_is_refused(field):
    with pytest.raises(UserError, match=f"{field} = 'automatic'"):
        load([f"--{field}", "automatic"])
