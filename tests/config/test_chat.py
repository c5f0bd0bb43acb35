"""Recipes of conversations: their own contradictions, what they share with SCROLLS, and the shipped ones."""

import json
from functools import partial
from pathlib import Path

import pytest

from tape_ds.cli import train
from tape_ds.config import finetuning, kinds
from tape_ds.config.finetuning import load_chat
from tests.config import helpers

GOOD = {"model": "smollm2", "train_data": ["stdlib"], "max_steps": 4, "global_batch_size": 8}
write = partial(helpers.write, good=GOOD)
problems_of = partial(helpers.problems_of, load=load_chat)
TALK = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


# (what to change, expected field, part of the problem, part of the remedy)
MALFORMED = {
    "no such file": ({"train_data": ["jsonl:none.jsonl"]}, "train_data", "no such file", "path"),
    "documents": ({"train_data": ["text:*.txt"]}, "train_data", "no conversations", "jsonl:FILE"),
    "no such held-out file": ({"eval_data": ["parquet:none"]}, "eval_data", "no such file", "path"),
    "held out twice": ({"eval_data": ["stdlib"], "eval_share": 0.1}, "eval_share", "eval_data names", "one of the two"),
    "all held out": ({"eval_share": 1.0}, "eval_share", "out of range", "0 to below 1"),
    "another way to cut": ({"too_long": "truncate"}, "too_long", "wrong type", "cut, leave_out"),
    "a sequence of one token": ({"max_tokens": 1}, "max_tokens", "out of range", "2 or more"),
    "no template there": ({"chat_template": "none.jinja"}, "chat_template", "cannot be read", "jinja"),
    "no model there": ({"model": "runs/none/trained"}, "model", "no such folder", "a folder"),
    "an unknown field": ({"method": "lora"}, "method", "unknown field", "one of"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_wrong_is_said(case):
    fields, *said = MALFORMED[case]
    helpers.check_said(problems_of("--recipe", write(**fields))[0], *said)


def test_everything_at_once():
    wrong = {"train_data": ["bin:x"], "chat_template": "none", "model": "none", "too_long": "x", "eval_share": -1}
    found, _ = problems_of("--recipe", write(**wrong))
    assert set(found) == set(wrong)
    found, _ = problems_of("--recipe", write(without=("model", "train_data")))
    assert set(found) == {"model", "train_data"}


@pytest.mark.parametrize("place", [None, "chat_template.jinja", "tokenizer_config.json"])
def test_a_folder_without_a_template_is_refused_before_anything_loads(place):
    folder = Path("model")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    if place is not None:
        (folder / place).write_text(json.dumps({"chat_template": "{{ messages }}"}))
    found, _ = problems_of("--recipe", write(model="model"))  # which has no weights, either
    assert ("chat_template" in found) == (place is None)
    Path("mine.jinja").write_text("{{ messages }}")
    if place is None:
        assert "model comes without" in found["chat_template"].wrong
        assert "--chat_template FILE" in found["chat_template"].remedy
        assert "chat_template" not in problems_of("--recipe", write(model="model", chat_template="mine.jinja"))[0]


def test_the_whole_recipe_loads_to_the_same_run():
    Path("x.jsonl").write_text(json.dumps(TALK))
    fields = {"train_data": ["jsonl:x.jsonl"], "eval_share": 0.25, "too_long": "leave_out", "max_tokens": "32k"}
    recipe = load_chat(["--recipe", write(**fields)])
    assert recipe.window == 32768 and recipe.as_dict()["launcher"] == "finetune"
    Path("again.yaml").write_text(recipe.to_yaml())
    assert load_chat(["--recipe", "again.yaml"]).to_yaml() == Path("again.yaml").read_text()


def test_the_default_needs_nothing_but_what_is_installed():
    recipe = load_chat([])
    assert (recipe.name, recipe.model.model, recipe.data.train_data) == ("chat_tiny", "smollm2", ["stdlib"])
    assert "conversations of stdlib" in train.describe(recipe)


def test_the_settings_of_longalign():
    """Its scripts/llama_pack.sh on 8 GPUs."""
    recipe = load_chat(["--recipe", "longalign_llama3_8b"], world_size=8)
    settings = {"num_train_epochs": 2, "learning_rate": 2e-5, "weight_decay": 0.0, "adam_beta2": 0.95, "bf16": True}
    settings |= {"warmup_steps": 0.03, "lr_scheduler_type": "cosine", "activation_checkpointing": True}
    assert {key: recipe.trainer_value(key) for key in settings} == settings
    assert (recipe.window, recipe.global_batch_size, recipe.accumulation()) == (65536, 8, 1)
    assert recipe.deepspeed["zero_optimization"]["stage"] == 3


def test_one_launcher_takes_both_kinds():
    Path("own.yaml").write_text("launcher: finetune_scrolls\n")
    for name in ("scrolls/qasper", "scrolls_tiny", "own.yaml"):
        assert kinds.taken("finetune", name) is finetuning.ScrollsRecipe
    Path("silent.yaml").write_text("seed: 1\n")
    for name in ("chat_tiny", "silent.yaml", "there_is_none", "tiny"):
        assert kinds.taken("finetune", name) is finetuning.ChatRecipe
    assert kinds.taken("finetune_scrolls", "chat_tiny") is finetuning.ScrollsRecipe
    found, _ = helpers.problems_of("--recipe", "chat_tiny", load=finetuning.load)
    assert "start launchers/finetune.py" in found["recipe"].remedy
