"""What ``--dry_run`` says."""

import shlex
from pathlib import Path

import pytest

from tape_ds.cli import plan as tools_plan
from tape_ds.cli import train
from tape_ds.config.extension import load
from tape_ds.planning import hardware, recipe_job


def test_the_plan_says_batch_steps_and_engine():
    shown = train.describe(load([], world_size=2))
    assert "8 sequences = 8,192 tokens a step: 1 per device x 2 processes x 4 accumulation" in shown
    assert "smollm2, 8,192 -> 16,384 positions, x2\n" in shown and "ZeRO-1, bf16" in shown and "PoSE, 2 chunks" in shown


@pytest.mark.parametrize(
    ("arguments", "trained"),
    [
        (["--method", "full", "--train_embeddings", "true"], "full, training everything"),
        (
            ["--method", "lora", "--position_encoding", "rope", "--train_position", "false"],
            "lora, training adapters, norms",
        ),
        (["--method", "tape"], "tape, training position, norms"),
    ],
)
def test_the_plan_says_what_is_trained(arguments, trained):
    assert trained in train.describe(load(arguments, world_size=1))


def test_a_method_without_steps_asks_for_none():
    """RoPE scaling alone: no batch has to divide by the processes, and nothing says that sequences are read."""
    lines = train.describe(load(["--method", "yarn", "--max_steps", "-1"], world_size=3))
    assert "yarn, training nothing" in lines and "none is read" in lines and "no DeepSpeed" in lines
    assert "tokens a step" not in lines and "steps " not in lines


def line(recipe):
    """What is said of memory."""
    return next(each for each in train.describe(recipe).splitlines() if each.startswith("memory "))


def test_the_plan_predicts_memory_by_part(monkeypatch):
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: None)
    shown = line(load(["--recipe", "llama2_7b_8k"], world_size=8))
    assert "GiB a process on a CPU" in shown and "position states 1.9" in shown


def test_the_plan_names_the_layout_that_a_run_would_take(monkeypatch):
    """With the batch and the memory that follow from it."""
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: hardware.find("h200"))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    lines = dict(each.split(maxsplit=1) for each in train.describe(load(["--recipe", "llama2_7b_8k"], 8)).splitlines())
    flags = "--deepspeed zero1 --activation_checkpointing false --per_device_train_batch_size 2"
    assert lines["layout"].startswith(f"{flags} (the fastest on h200 with ")
    assert lines["engine"] == "ZeRO-1, bf16" and "2 per device x 8 processes x 4 accumulation" in lines["batch"]
    assert "about 89.29 GiB a GPU" in lines["memory"]


def test_the_command_of_a_plan_for_gpus_asks_for_the_same_run(monkeypatch, tmp_path):
    """It named the recipe without its folder, and none of what the command line changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: None)
    Path("my.yaml").write_text("base: demo\n")
    words = ["--recipe", "my.yaml", "--method", "lora", "--rope_parameters.factor", "null", "--dry_run"]
    words += ["--train_data", '["stdlib"]']
    recipe = load(words, world_size=2)
    asked = line(recipe).partition("tape-ds plan ")[2]
    assert asked.endswith(" --gpus 2 --gpu h100-80")
    own, fields = tools_plan.parse(shlex.split(asked))
    again = tools_plan.load(own.recipe, fields, own.gpus)
    assert again.as_dict() == recipe.as_dict() and own.recipe == "my.yaml"


@pytest.mark.parametrize(("gpu", "fits"), [("h200", True), ("v100-32", False)])
def test_the_plan_names_the_gpu_at_hand_and_whether_it_has_room(gpu, fits, monkeypatch):
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: hardware.find(gpu))
    words = ["--deepspeed", "zero1", "--activation_checkpointing", "false"]
    shown = line(load(["--recipe", "llama2_7b_8k", *words], world_size=8))
    assert f"({gpu})" in shown and ("DOES NOT FIT" not in shown) is fits


def test_a_model_that_nobody_has_seen_yet_is_not_counted():
    assert "not known before" in line(load(["--model", "somebody/llama-11b"], world_size=1))


def test_sizes_that_cannot_be_counted_are_said(monkeypatch):
    def refuse(*_):
        raise RuntimeError("Storage size calculation overflowed with sizes=[...]\nmore")

    monkeypatch.setattr(recipe_job, "memory_line", refuse)
    assert "beyond counting (Storage size" in line(load([], world_size=1))
