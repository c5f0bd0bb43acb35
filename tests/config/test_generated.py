"""Recipes of generated tasks: their own contradictions, derived fields, and the shipped ones."""

from functools import partial
from pathlib import Path

import pytest

from tape_ds import encodings
from tape_ds.cli import train
from tape_ds.config import files
from tape_ds.config.generated import load
from tape_ds.data.generated import TASKS
from tests.config import helpers

GOOD = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "position_encoding": "rope",
    "task": "addition",
    "max_digits": 5,
    "max_steps": 4,
    "global_batch_size": 8,
}
write = partial(helpers.write, good=GOOD)
problems_of = partial(helpers.problems_of, load=load)
SHIPPED = (
    *("addition", "addition_20", "addition_40", "addition_6", "addition_tiny"),
    *("bitwise_or", "multiplication_15", "sorting", "subtraction_20"),
)
ADDRESSING = ("flip_flop", "look_ahead", "look_back", "look_back_markers", "recall", "selective_copy")


LENGTHS = {"look_back": [32, 48], "look_ahead": [32, 48], "flip_flop": [64, 64], "selective_copy": [32], "recall": [32]}


def written(task="addition", without=(), **fields):
    """A recipe file in the current folder, of this task."""
    if task in LENGTHS or task == "look_bak":
        fields = {"train_lengths": LENGTHS.get(task)} | fields
        without = (*without, *(() if "max_digits" in fields else ("max_digits",)))
    return write(without=without, task=task, **fields)


def loaded(world_size=None, **fields):
    return load(["--recipe", written(**fields)], world_size=world_size)


# what to change, the field named, and the right values that the remedy has; tests/assets has every mistake
REMEDIES = [
    ({"max_digits_second": 201}, "max_digits_second", "1 to 200"),
    ({"task": "sorting", "max_digits_second": 53}, "max_digits_second", "1 to 52"),
    ({"window": 18}, "window", "19 or more"),
    ({"test_digits": 4}, "test_digits", "5 or more"),
    ({"test_digits": 1001}, "test_digits", "1,000 or less"),
    ({"max_steps": -1, "num_train_epochs": 2}, "num_train_epochs", "max_steps"),
    ({"task": "look_back", "train_lengths": [17]}, "train_lengths", "18 to 4,096"),
    ({"task": "look_back", "test_lengths": [48, 4097]}, "test_lengths", "18 to 4,096"),
    ({"task": "look_back", "window": 50}, "window", "51 or more"),
    ({"task": "flip_flop", "train_lengths": [65]}, "train_lengths", "a multiple of 2"),
    ({"task": "recall", "task_options": {"keys": 16}, "test_lengths": [34]}, "test_lengths", "16 to 32"),
    ({"task": "look_back", "task_options": {"marker": 2}}, "task_options.marker", "markers"),
    ({"task": "look_bak", "train_lengths": [32]}, "task", "look_back"),
]


@pytest.mark.parametrize(("fields", "field", "remedy"), REMEDIES)
def test_a_remedy_has_the_right_values(fields, field, remedy):
    found, _ = problems_of("--recipe", written(**fields))
    assert set(found) == {field} and remedy in found[field].remedy


def test_arithmetic_has_no_lengths():
    found, _ = problems_of("--recipe", written(train_lengths=[3, 4], task_options={"markers": 2}))
    assert set(found) == {"train_lengths", "task_options"} and "max_digits" in found["train_lengths"].remedy


def test_everything_at_once():
    """An unknown encoding, too, hides nothing else."""
    fields = {
        "task": "sums",
        "max_digits": 0,
        "position_encoding": "rop",
        "learning_rate": -1.0,
        "held_out_samples": -1,
    }
    found, _ = problems_of("--recipe", write(**fields))
    assert {"task", "max_digits", "position_encoding", "learning_rate", "held_out_samples"} <= set(found)


def test_all_that_is_wrong_with_lengths_at_once():
    fields = {"train_lengths": [3], "test_lengths": [5], "position_encoding": "rop", "max_digits": 2, "window": 4}
    found, _ = problems_of("--recipe", written("look_back", **fields))
    assert {"train_lengths", "test_lengths", "position_encoding", "max_digits", "window"} <= set(found)


def test_sizes_task_and_digits_must_be_given():
    """Whether there are digits to give is the task's to say."""
    found, _ = problems_of("--recipe", write(without=("hidden_size", "task", "max_digits")))
    assert set(found) == {"hidden_size", "task"}
    found, _ = problems_of("--recipe", write(without=("hidden_size", "max_digits")))
    assert set(found) == {"hidden_size", "max_digits"}


def test_what_follows_from_the_digits():
    recipe = loaded(max_digits=5)
    assert (recipe.data.max_digits_second, recipe.data.test_digits, recipe.window) == (5, 10, 19)
    assert recipe.test_tokens == 34
    uneven = loaded(max_digits=5, max_digits_second=3)
    assert (uneven.window, uneven.data.test_digits, uneven.test_tokens) == (17, 10, 30)
    assert loaded(window=64).window == 64
    assert (recipe.model.num_key_value_heads, recipe.model.head_dim) == (4, 16)


def test_what_follows_from_the_lengths():
    recipe = loaded(task="look_back")
    assert recipe.data.test_lengths == [48, 72, 96] and recipe.window == 51 and recipe.test_tokens == 99
    assert recipe.data.task_options == {"letters": 26, "most": 16, "markers": 1, "queries": 1}
    assert recipe.checked_config().vocab_size == 4 + 26 + 1 + 1 + 16
    assert loaded(task="recall", train_lengths=[30]).data.test_lengths == [30, 44, 60], "pairs have two tokens"
    assert loaded(task="recall", train_lengths=[100]).data.test_lengths == [100, 128], "and there are 64 keys"
    assert loaded(task="look_back", task_options={"queries": 4}).window == 60


def test_arithmetic_has_nothing_new_in_its_identity():
    """A checkpoint from before there were lengths can be resumed."""
    data = loaded().data
    assert data.train_lengths is data.test_lengths is data.task_options is None


def test_the_model_has_the_letters_of_its_task():
    config = loaded(task="sorting").checked_config()
    assert config.vocab_size == 69 and (config.eos_token_id, config.pad_token_id) == (3, 0)
    assert (
        loaded().checked_config().vocab_size == 19 and config.max_position_embeddings == loaded(task="sorting").window
    )


def test_drawn_positions_reach_the_tests():
    """Evaluation spreads the range over the tokens of the longest test; what somebody writes is kept."""
    options = loaded(position_encoding="randpe").checked_config().position_options
    assert options == {"max_range": 68, "evaluation_length": 34}
    longer = loaded(position_encoding="randpe", test_digits=25).checked_config().position_options
    assert longer["evaluation_length"] == 79
    given = {"max_range": 30}
    own = loaded(position_encoding="randpe", position_options=given).checked_config().position_options
    assert own == {"max_range": 30, "evaluation_length": 30}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("encoding", encodings.available())
def test_every_encoding_can_be_asked_for(task, encoding):
    recipe = loaded(task=task, position_encoding=encoding, attention_backend="sdpa")
    described = train.describe(recipe)
    assert f"encoding  {encoding}" in described and f"data      {task}: " in described
    if encoding == "randpe":
        assert recipe.checked_config().position_options["evaluation_length"] == recipe.test_tokens


def test_digits_can_be_given_places():
    """Abacus embeddings take the digits' ids from the task's letters."""
    options = loaded(position_options={"abacus": True}).checked_config().position_options
    assert options["abacus_digits"] == list(range(4, 14))


@pytest.mark.parametrize("field", ["sequence_parallel_size", "tensor_parallel_size"])
def test_heads_are_shared_as_in_pretraining(field):
    assert loaded(world_size=2, deepspeed="zero1", **{field: 2}).scale.ways == 2
    found, _ = problems_of("--recipe", write(deepspeed="zero1", **{field: 3}), world_size=3)
    assert set(found) == {field} and "4" in found[field].wrong


@pytest.mark.parametrize(
    "fields",
    [
        {"position_encoding": "randpe", "max_digits_second": 3},
        {"task": "flip_flop", "task_options": {"ignore": 0.5}},
    ],
)
def test_the_whole_recipe_loads_to_the_same_run(fields):
    recipe = loaded(**fields)
    Path("again.yaml").write_text(recipe.to_yaml())
    assert load(["--recipe", "again.yaml"]).to_yaml() == Path("again.yaml").read_text()


def test_the_shipped_recipes_are_known():
    assert files.recipes_of("train_arithmetic") == sorted((*SHIPPED, *ADDRESSING))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_load_for_any_encoding(name):
    for encoding in ("tape", "randpe"):
        recipe = load(["--recipe", f"arithmetic/{name}", "--position_encoding", encoding], world_size=2)
        assert recipe.accumulation() >= 1 and recipe.checked_config().position_encoding == encoding


@pytest.mark.parametrize("name", ADDRESSING)
def test_shipped_recipes_of_addressing_need_no_engine(name):
    for encoding in ("tape", "randpe"):
        recipe = load(["--recipe", f"addressing/{name}", "--position_encoding", encoding])
        assert recipe.deepspeed is None and recipe.accumulation() == 1
        assert recipe.checked_config().position_encoding == encoding
        assert recipe.trainer_value("output_dir") == f"runs/addressing/{name}"


@pytest.mark.parametrize("name, tokens", [("addition_20", 64), ("addition_40", 124)])
def test_additions_at_paper_scale_have_the_published_settings(name, tokens):
    """Table 5 of the TAPE paper, the rest from its code; sequences are as long as its rows."""
    recipe = load(["--recipe", f"arithmetic/{name}"], world_size=8)
    assert (recipe.global_batch_size, recipe.window, recipe.data.test_digits) == (
        512,
        tokens,
        2 * recipe.data.max_digits,
    )
    settings = {
        "max_steps": 20_000,
        "learning_rate": 1e-4,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-12,
        "weight_decay": 0.01,
        "max_grad_norm": 0.5,
        "lr_scheduler_type": "warmup_stable_decay",
        "warmup_steps": 0.1,
        "bf16": True,
    }
    assert {key: recipe.trainer_value(key) for key in settings} == settings
    model = recipe.model
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (16, 1024, 16)


def test_the_default_is_a_small_one():
    recipe = load([])
    assert (recipe.name, recipe.data.task, recipe.window) == ("addition_tiny", "addition", 10)
