"""How processes share sequences: what the batch then counts, and what is refused with a remedy before anything
starts."""

from types import SimpleNamespace

import pytest

from tape_ds.config.scale import Scale, check_model
from tape_ds.errors import UserError
from tests.config import loads
from tests.config.helpers import json_file, problems_of, write


def test_batch_and_accumulation_count_groups():
    """8 processes that share sequences by fours read two batches at a time."""
    recipe = loads.extension(["--recipe", write(sequence_parallel_size=4)], world_size=8)
    assert recipe.layout().data == 2
    assert recipe.accumulation() == 8 // (2 * 2)


def test_the_default_batch_is_a_sequence_of_each_group():
    file = write(without=["global_batch_size"], sequence_parallel_size=2)
    assert loads.extension(["--recipe", file], world_size=8).global_batch_size == 2 * 4


def test_another_number_of_processes_must_fit_too():
    recipe = loads.extension(["--recipe", write(sequence_parallel_size=2)], world_size=4)
    with pytest.raises(UserError, match="does not divide the job's processes, 3"):
        recipe.layout(3)


@pytest.mark.parametrize("field", ["sequence_parallel_size", "tensor_parallel_size"])
def test_the_engine_counts_a_sequence_once_for_every_process_that_reads_it(field):
    """Its train_batch_size is checked against all processes."""
    zero = {"zero_optimization": {"stage": 2}}
    for batch, right in ((16, True), (8, False)):
        file = write(deepspeed=json_file(train_batch_size=batch, **zero), **{field: 2})
        if right:
            loads.extension(["--recipe", file], world_size=4)
        else:
            found, _ = problems_of("--recipe", file, world_size=4)
            assert set(found) == {"deepspeed.train_batch_size"}


def test_the_engine_gets_tensor_parallelism_from_the_recipe():
    """And its own count of sequences is that of whole ones: ranks with pieces of a model are one to it."""
    file = write(deepspeed="zero2", tensor_parallel_size=2)
    given = loads.extension(["--recipe", file], world_size=4).training_arguments().deepspeed
    assert given["tensor_parallel"] == {"autotp_size": 2}


@pytest.mark.parametrize(
    "config, words",
    [
        ({"model_type": "gptj", "num_attention_heads": 8}, "the type gptj"),
        (
            {"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3},
            "give one of: 1, 3, 9",
        ),
        (
            {
                "model_type": "llama",
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "mlp_bias": True,
            },
            "mlp_bias",
        ),
    ],
)
def test_a_model_that_cannot_be_cut_is_named(config, words):
    sizes = {"intermediate_size": 64, "vocab_size": 64}
    (problem,) = check_model(Scale(tensor_parallel_size=2), SimpleNamespace(**config, **sizes))
    assert problem.field == "tensor_parallel_size" and words in f"{problem.wrong} {problem.remedy}"


@pytest.mark.parametrize("names", [{"num_key_value_heads": 3}, {"num_key_value_heads": None}, {}])
def test_a_models_heads_are_checked_once_they_are_known(names):
    """GPT-J's configuration has no number of key/value heads."""
    config = SimpleNamespace(num_attention_heads=9, **names)
    assert not check_model(Scale(sequence_parallel_size=3), config)
    (problem,) = check_model(Scale(sequence_parallel_size=2), config)
    assert problem.remedy == "give one of: 1, 3, 9"
