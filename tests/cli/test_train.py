"""The plan that ``--dry_run`` prints."""

import shlex
from pathlib import Path

import pytest

from tape_ds.cli import plan as tools_plan
from tape_ds.cli import train
from tape_ds.config.extension import load
from tape_ds.planning import hardware


def test_the_plan_has_batch_positions_and_engine():
    shown = train.describe(load([], world_size=2))
    assert "8 sequences = 8,192 tokens a step: 1 per device x 2 processes x 4 accumulation" in shown
    assert "smollm2, 8,192 -> 16,384 positions, x2\n" in shown and "ZeRO-1, bf16" in shown and "PoSE, 2 chunks" in shown


def test_scaling_alone_needs_no_batch_that_divides():
    lines = train.describe(load(["--method", "yarn", "--max_steps", "-1"], world_size=3))
    assert "yarn, training nothing" in lines and "no DeepSpeed" in lines and "tokens a step" not in lines


def line(recipe):
    """The plan's line about memory."""
    return next(each for each in train.describe(recipe).splitlines() if each.startswith("memory "))


def test_the_plan_has_the_layout_that_a_run_would_take(monkeypatch):
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: hardware.find("h200"))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    lines = dict(each.split(maxsplit=1) for each in train.describe(load(["--recipe", "llama2_7b_8k"], 8)).splitlines())
    flags = "--deepspeed zero1 --activation_checkpointing false --per_device_train_batch_size 2"
    assert lines["layout"].startswith(f"{flags} (the fastest on h200 with ")
    assert lines["engine"] == "ZeRO-1, bf16" and "2 per device x 8 processes x 4 accumulation" in lines["batch"]
    assert "about 89.29 GiB a GPU" in lines["memory"]


def test_the_command_of_a_plan_for_gpus_asks_for_the_same_run(monkeypatch, tmp_path):
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
def test_the_plan_compares_memory_with_the_gpu_at_hand(gpu, fits, monkeypatch):
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: hardware.find(gpu))
    words = ["--deepspeed", "zero1", "--activation_checkpointing", "false"]
    shown = line(load(["--recipe", "llama2_7b_8k", *words], world_size=8))
    assert f"({gpu})" in shown and ("DOES NOT FIT" not in shown) is fits
