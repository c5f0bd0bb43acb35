"""How processes share sequences: what the batch then counts, and what is refused with a remedy before anything
starts."""

from types import SimpleNamespace

import pytest

from tape_ds.cli import train
from tape_ds.config import extension, pretraining
from tape_ds.config.scale import Scale, check_model
from tape_ds.errors import UserError
from tests.config.helpers import json_file, problems_of, write


def test_batch_and_accumulation_count_groups():
    """8 processes that share sequences by fours read two batches at a time."""
    recipe = extension.load(["--recipe", write(sequence_parallel_size=4)], world_size=8)
    assert recipe.layout().data == 2
    assert recipe.accumulation() == 8 // (2 * 2)


def test_a_batch_that_nobody_writes_is_a_sequence_of_each_group():
    file = write(without=["global_batch_size"], sequence_parallel_size=2)
    assert extension.load(["--recipe", file], world_size=8).global_batch_size == 2 * 4


def test_the_plan_says_who_reads():
    recipe = extension.load(["--recipe", write(sequence_parallel_size=3)], world_size=6)
    assert "2 per device x 2 groups of 3 processes x 2 accumulation" in train.describe(recipe)


def test_another_number_of_processes_must_fit_too():
    recipe = extension.load(["--recipe", write(sequence_parallel_size=2)], world_size=4)
    with pytest.raises(UserError, match="does not divide the job's processes, 3"):
        recipe.layout(3)


# (what to change, processes, expected field, part of the message)
REFUSED = {
    "no group": ({"sequence_parallel_size": 0}, 2, "sequence_parallel_size", "give 1"),
    "does not divide": ({"sequence_parallel_size": 4}, 6, "sequence_parallel_size", "start a multiple of 4 processes"),
    "one process": ({"sequence_parallel_size": 2}, 1, "sequence_parallel_size", "start a multiple of 2 processes"),
    "batch": ({"global_batch_size": 6}, 8, "global_batch_size", "4 (groups of 2 processes)"),
    "accumulation": ({"gradient_accumulation_steps": 1}, 4, "gradient_accumulation_steps", "2 x 2 groups of 2"),
    "groups of tokens": ({"method": "longlora"}, 4, "sequence_parallel_size", "every head in one process"),
    "nothing trained": (
        {"method": "yarn", "rope_parameters": {}},
        4,
        "sequence_parallel_size",
        "nothing is trained",
    ),
    "noise": ({"neftune_noise_alpha": 5.0}, 4, "neftune_noise_alpha", "remove one of the two"),
    "compiled": ({"torch_compile": True}, 4, "torch_compile", "remove one of the two"),
    "tokens seen": ({"include_num_input_tokens_seen": "all"}, 4, "include_num_input_tokens_seen", "tokens"),
    "both": ({"tensor_parallel_size": 2, "deepspeed": "zero2"}, 4, "tensor_parallel_size", "one of the two"),
}
PIECES = {
    "no group": ({"tensor_parallel_size": 0}, 2, "tensor_parallel_size", "give 1"),
    "does not divide": ({"tensor_parallel_size": 4}, 6, "tensor_parallel_size", "start a multiple of 4 processes"),
    "zero3": ({"deepspeed": "zero3"}, 4, "tensor_parallel_size", "sequence_parallel_size with zero3"),
    "no engine": ({"deepspeed": None}, 4, "tensor_parallel_size", "deepspeed: zero1 or zero2"),
    "groups of tokens": ({"method": "longlora"}, 4, "tensor_parallel_size", "every head in one process"),
    "nothing trained": ({"method": "yarn", "rope_parameters": {}}, 4, "tensor_parallel_size", "nothing is trained"),
    "compiled": ({"torch_compile": True}, 4, "torch_compile", "with tensor_parallel_size above 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    refused({"sequence_parallel_size": 2}, *REFUSED[name])


@pytest.mark.parametrize("name", PIECES)
def test_what_cannot_be_cut_is_refused(name):
    refused({"tensor_parallel_size": 2, "deepspeed": "zero2"}, *PIECES[name])


def refused(shared, changes, processes, field, words):
    """What a recipe that shares the work is told of some changes."""
    file = write(**(shared | changes))
    found, message = problems_of("--recipe", file, world_size=processes)
    assert set(found) == {field} and words in message, message


def test_the_engine_is_not_told_of_it():
    """DeepSpeed would take a group for one rank, and average over too few."""
    written = json_file(sequence_parallel_size=2)
    found, message = problems_of("--recipe", write(deepspeed=written), world_size=4)
    assert set(found) == {"deepspeed.sequence_parallel_size"}
    assert "sequence_parallel_size: 2 in the recipe" in message


@pytest.mark.parametrize("field", ["sequence_parallel_size", "tensor_parallel_size"])
def test_the_engine_counts_a_sequence_once_for_every_process_that_reads_it(field):
    """Its train_batch_size is checked against all processes."""
    zero = {"zero_optimization": {"stage": 2}}
    for batch, right in ((16, True), (8, False)):
        file = write(deepspeed=json_file(train_batch_size=batch, **zero), **{field: 2})
        if right:
            extension.load(["--recipe", file], world_size=4)
        else:
            _, message = problems_of("--recipe", file, world_size=4)
            assert f"global_batch_size x {field} = 16" in message


@pytest.mark.parametrize("field", ["sequence_parallel_size", "tensor_parallel_size"])
def test_heads_that_a_recipe_gives_are_checked_with_it(field):
    found, message = problems_of(f"--{field}", "3", world_size=3, load=pretraining.load)
    assert field in found and "give one of: " in message


def test_the_engine_is_told_of_pieces_by_the_recipe_alone():
    """And its own count of sequences is that of whole ones: ranks with pieces of a model are one to it."""
    written = json_file(tensor_parallel={"autotp_size": 2})
    found, message = problems_of("--recipe", write(deepspeed=written), world_size=4)
    assert set(found) == {"deepspeed.tensor_parallel"} and "tensor_parallel_size in the recipe" in message
    file = write(deepspeed="zero2", tensor_parallel_size=2)
    given = extension.load(["--recipe", file], world_size=4).training_arguments().deepspeed
    assert given["tensor_parallel"] == {"autotp_size": 2}


@pytest.mark.parametrize(
    "config, words",
    [
        ({"model_type": "gptj", "num_attention_heads": 8}, "the type gptj"),
        ({"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3}, "give one of: 1, 3, 9"),
        ({"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 8, "mlp_bias": True}, "mlp_bias"),
    ],
)
def test_a_model_that_cannot_be_cut_is_named(config, words):
    sizes = {"intermediate_size": 64, "vocab_size": 64}
    (problem,) = check_model(Scale(tensor_parallel_size=2), SimpleNamespace(**config, **sizes))
    assert problem.field == "tensor_parallel_size" and words in f"{problem.wrong} {problem.remedy}"


@pytest.mark.parametrize("names", [{"num_key_value_heads": 3}, {"num_key_value_heads": None}, {}])
def test_a_models_heads_are_checked_once_they_are_known(names):
    """GPT-J's configuration has no key/value heads of its own."""
    config = SimpleNamespace(num_attention_heads=9, **names)
    assert not check_model(Scale(sequence_parallel_size=3), config)
    (problem,) = check_model(Scale(sequence_parallel_size=2), config)
    assert problem.remedy == "give one of: 1, 3, 9"
