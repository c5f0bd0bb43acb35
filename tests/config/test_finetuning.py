"""The recipe of the fine-tuning launcher: its own contradictions, its defaults, and the shipped ones."""

import json
from functools import partial
from pathlib import Path

import pytest

from tape_ds.cli import train
from tape_ds.config.finetuning import load
from tape_ds.data.scrolls.examples import DATASETS
from tests.config import helpers

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "scrolls"
GOOD = {"model": "smollm2", "dataset": "qasper", "data_dir": str(ASSETS), "max_steps": 4, "global_batch_size": 8}
write = partial(helpers.write, good=GOOD)
problems_of = partial(helpers.problems_of, load=load)


# (what to change, expected field, part of the problem, part of the remedy)
MALFORMED = {
    "unknown data set": ({"dataset": "quasper"}, "dataset", "no such data set", "qasper"),
    "no such folder": ({"data_dir": "nowhere"}, "data_dir", "no such folder", "NAME.zip"),
    "data for what is made": ({"dataset": "stdlib"}, "data_dir", "is generated", "remove"),
    "no model there": ({"model": "runs/none/trained"}, "model", "no such folder", "a folder"),
    "no room for a text": ({"max_tokens": 210}, "max_tokens", "answer_tokens = 200", "217"),
    "no room for an answer": ({"answer_tokens": 0}, "answer_tokens", "out of range", "1 or more"),
    "fewer than none": ({"eval_examples": -1}, "eval_examples", "out of range", "0"),
    "an unknown backend": ({"attention_backend": "flsh"}, "attention_backend", "unknown", "flash"),
    "another launcher's field": ({"method": "lora"}, "method", "unknown field", "one of"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_wrong_is_said(case):
    fields, *said = MALFORMED[case]
    helpers.check_said(problems_of("--recipe", write(**fields))[0], *said)


def test_everything_at_once():
    found, _ = problems_of("--recipe", write(dataset="quasper", max_tokens=10, model="none", learning_rate=-1.0))
    assert set(found) == {"dataset", "max_tokens", "model", "learning_rate"}


def test_model_and_data_set_must_be_given():
    found, _ = problems_of("--recipe", write(without=("model", "dataset", "data_dir")))
    assert set(found) == {"model", "dataset"}


def test_archives_and_single_splits_are_looked_for():
    """Held-out answers need the second split."""
    Path("qasper").mkdir()
    Path("qasper/train.jsonl").write_text(json.dumps({"id": "1", "input": "x", "output": "y"}))
    found, _ = problems_of("--recipe", write(data_dir="."))
    assert "no qasper/validation.jsonl" in found["data_dir"].wrong
    assert load(["--recipe", write(data_dir=".", eval_examples=0)]).data.eval_examples == 0
    assert load(["--recipe", write(dataset="contract_nli")]).data.dataset == "contract_nli"


@pytest.mark.parametrize("name, tokens", [("qasper", 200), ("gov_report", 1000)])
def test_an_answer_is_as_long_as_its_kind(name, tokens):
    recipe = load(["--recipe", write(dataset=name)])
    assert recipe.data.answer_tokens == tokens and recipe.window == recipe.data.max_tokens == 8192
    assert load(["--recipe", write(dataset=name), "--answer_tokens", "50"]).data.answer_tokens == 50


def test_the_whole_recipe_loads_to_the_same_run():
    recipe = load(["--recipe", write(reference_format=True)])
    Path("again.yaml").write_text(recipe.to_yaml())
    assert load(["--recipe", "again.yaml"]).to_yaml() == Path("again.yaml").read_text()


@pytest.mark.parametrize("name", DATASETS)
def test_shipped_recipes_are_the_published_settings(name):
    """Table 5 of the TAPE paper and its ft_scrolls.sh; any number of processes that divides 64."""
    recipe = load(["--recipe", f"scrolls/{name}", "--model", "smollm2", "--data_dir", str(ASSETS)], world_size=4)
    assert (recipe.name, recipe.data.dataset, recipe.data.max_tokens) == (name, name, 8192)
    assert recipe.global_batch_size == 64 and recipe.accumulation() == 8
    settings = {
        "max_steps": 1000,
        "learning_rate": 1e-5,
        "weight_decay": 0.01,
        "lr_scheduler_type": "polynomial",
        "warmup_steps": 0.1,
        "seed": 2024,
        "bf16": True,
        "activation_checkpointing": True,
    }
    assert {key: recipe.trainer_value(key) for key in settings} == settings
    assert recipe.deepspeed["zero_optimization"]["stage"] == 2
    assert "up to 524,288 tokens a step" in train.describe(recipe)


def test_the_seven_differ_in_nothing_but_the_data_set():
    for name in DATASETS:
        assert helpers.said(name) == {"base": "scrolls", "dataset": name, "output_dir": f"runs/scrolls/{name}"}
    assert set(helpers.in_folder("scrolls")) == {*DATASETS, "scrolls", "scrolls_tiny"}


def test_the_default_needs_nothing_but_what_is_installed():
    recipe = load([])
    assert (recipe.name, recipe.model.model, recipe.data.dataset) == ("scrolls_tiny", "smollm2", "stdlib")
    assert "Python's own sources" in train.describe(recipe)
