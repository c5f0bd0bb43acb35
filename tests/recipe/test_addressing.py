"""Recipes of tasks of addressing: their own contradictions, what follows from what, and the shipped ones."""

from pathlib import Path

import pytest

from tape_ds.data.addressing.tasks import TASKS
from tape_ds.model import positions
from tape_ds.recipe.arithmetic import load
from tape_ds.training import plan
from tests.recipe import helpers
from tests.recipe import test_arithmetic as arithmetic

LENGTHS = {"look_back": [32, 48], "look_ahead": [32, 48], "flip_flop": [64, 64], "selective_copy": [32], "recall": [32]}


def write(task="look_back", without=(), **fields):
    """A recipe file in the current folder, of the arithmetic's good one."""
    own = {"task": task, "train_lengths": LENGTHS.get(task), **fields}
    digits = () if "max_digits" in fields else ("max_digits",)
    return arithmetic.write(without=(*digits, *without), **own)


def loaded(**fields):
    return load(["--recipe", write(**fields)])


# (what to change, expected field, part of the problem, part of the remedy)
MALFORMED = {
    "no lengths": ({"without": ["train_lengths"]}, "train_lengths", "missing", "SHORTEST LONGEST"),
    "lengths of nothing": ({"train_lengths": None}, "train_lengths", "missing", "SHORTEST LONGEST"),
    "lengths the wrong way round": ({"train_lengths": [48, 32]}, "train_lengths", "no such sequences", "shortest and"),
    "three lengths": ({"train_lengths": [32, 40, 48]}, "train_lengths", "no such sequences", "shortest and"),
    "no room for every k": ({"train_lengths": [17]}, "train_lengths", "no such sequences", "18 to 4,096"),
    "odd sequences of pairs": (
        {"task": "flip_flop", "train_lengths": [65]},
        "train_lengths",
        "no such sequences",
        "a multiple of 2",
    ),
    "tests too long": ({"test_lengths": [48, 4097]}, "test_lengths", "no such sequences", "18 to 4,096"),
    "more pairs than keys": (
        {"task": "recall", "task_options": {"keys": 16}, "test_lengths": [34]},
        "test_lengths",
        "no such sequences",
        "16 to 32",
    ),
    "unknown option": ({"task_options": {"marker": 2}}, "task_options.marker", "not an option", "markers"),
    "digits": ({"max_digits": 3}, "max_digits", "look_back does not have it", "train_lengths"),
    "sequences that do not fit": ({"window": 50}, "window", "has 51 tokens", "51 or more"),
    "tests of nothing": ({"test_lengths": []}, "test_lengths", "no length", "held_out_samples: 0"),
    "unknown task": ({"task": "look_bak", "train_lengths": [32]}, "task", "no such task", "look_back"),
    "fewer than none": ({"held_out_samples": -1}, "held_out_samples", "out of range", "0"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_wrong_is_said(case):
    fields, *said = MALFORMED[case]
    helpers.check_said(arithmetic.problems_of("--recipe", write(**fields))[0], *said)


def test_arithmetic_has_no_lengths():
    found, _ = arithmetic.problems_of("--recipe", arithmetic.write(train_lengths=[3, 4], task_options={"markers": 2}))
    assert set(found) == {"train_lengths", "task_options"} and "max_digits" in found["train_lengths"].remedy


def test_everything_at_once():
    fields = {"train_lengths": [3], "test_lengths": [5], "position_encoding": "rop", "max_digits": 2, "window": 4}
    found, _ = arithmetic.problems_of("--recipe", write(**fields))
    assert {"train_lengths", "test_lengths", "position_encoding", "max_digits", "window"} <= set(found)


def test_what_follows_from_the_lengths():
    recipe = loaded()
    assert recipe.data.test_lengths == [48, 72, 96] and recipe.window == 51 and recipe.test_tokens == 99
    assert recipe.data.task_options == {"letters": 26, "most": 16, "markers": 1, "queries": 1}
    assert recipe.checked_config().vocab_size == 4 + 26 + 1 + 1 + 16
    assert loaded(task="recall", train_lengths=[30]).data.test_lengths == [30, 44, 60], "pairs have two tokens"
    assert loaded(task="recall", train_lengths=[100]).data.test_lengths == [100, 128], "and there are 64 keys"
    assert loaded(task_options={"queries": 4}).window == 60


def test_arithmetic_has_nothing_new_in_its_identity():
    """A checkpoint that was made before there were lengths can be gone on with."""
    data = arithmetic.loaded().data
    assert data.train_lengths is data.test_lengths is data.task_options is None


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("encoding", positions.available())
def test_every_encoding_can_be_asked_for(task, encoding):
    recipe = loaded(task=task, position_encoding=encoding, attention_backend="sdpa")
    assert f"encoding  {encoding}" in plan.describe(recipe) and f"data      {task}: " in plan.describe(recipe)
    if encoding == "randpe":
        assert recipe.checked_config().position_options["evaluation_length"] == recipe.test_tokens


def test_the_whole_recipe_loads_to_the_same_run():
    recipe = loaded(task="flip_flop", task_options={"ignore": 0.5})
    Path("again.yaml").write_text(recipe.to_yaml())
    assert load(["--recipe", "again.yaml"]).to_yaml() == Path("again.yaml").read_text()


@pytest.mark.parametrize("name", arithmetic.ADDRESSING)
def test_shipped_recipes_load_for_any_encoding(name):
    for encoding in ("tape", "randpe"):
        recipe = load(["--recipe", f"addressing/{name}", "--position_encoding", encoding])
        assert recipe.deepspeed is None and recipe.accumulation() == 1
        assert recipe.checked_config().position_encoding == encoding
        assert recipe.trainer_value("output_dir") == f"runs/addressing/{name}"
