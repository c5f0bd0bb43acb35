"""What of the memory savings contradicts itself is refused with the recipe."""

from types import SimpleNamespace

import pytest

from tape_ds.config.scale import Scale
from tape_ds.config.sections import Memory
from tape_ds.config.trainer import Trainer
from tape_ds.fields import run_rules


def problems(section=None, window=64, shared_by=1, **trainer):
    trainer = Trainer.build({"activation_checkpointing": True} | trainer)
    scale = Scale(sequence_parallel_size=shared_by)
    recipe = SimpleNamespace(scale=scale, window=window, trainer=trainer)
    return {
        problem.field: str(problem) for problem in run_rules(section or Memory(), set(), recipe)
    }


@pytest.mark.parametrize("layers", [1, "selective"])
@pytest.mark.parametrize("offload", [False, True])
def test_every_policy_may_be_given(layers, offload):
    assert problems(Memory(checkpoint_layers=layers, checkpoint_offload=offload)) == {}
    assert (
        problems(activation_checkpointing=False) == problems(activation_checkpointing=None) == {}
    ), "the defaults"


@pytest.mark.parametrize(
    "section, field",
    [
        (Memory(checkpoint_layers="selective"), "checkpoint_layers"),
        (Memory(checkpoint_offload=True), "checkpoint_offload"),
    ],
)
def test_what_shapes_checkpointing_needs_it(section, field):
    """A saving that would do nothing."""
    found = problems(section, activation_checkpointing=False)
    assert set(found) == {field} and "activation_checkpointing: true" in found[field]


@pytest.mark.parametrize(
    "key, ours", [("every_n_layers", "checkpoint_layers"), ("offload", "checkpoint_offload")]
)
def test_transformers_names_for_the_same(key, ours):
    """They would be overruled without a word."""
    given = {"use_reentrant": False, key: 2}
    found = problems(activation_checkpointing_kwargs=given)
    assert set(found) == {f"activation_checkpointing_kwargs.{key}"} and f"use {ours}" in next(
        iter(found.values())
    )


@pytest.mark.parametrize("tiles, fits", [(1, True), (64, True), (65, False)])
def test_tiles_of_a_sequence(tiles, fits):
    assert set(problems(Memory(mlp_tiles=tiles))) == (set() if fits else {"mlp_tiles"})


def test_tiles_are_of_a_process_s_part_of_a_sequence():
    assert (
        "a process has 32 tokens of a sequence"
        in problems(Memory(mlp_tiles=33), shared_by=2)["mlp_tiles"]
    )
    assert problems(Memory(mlp_tiles=32), shared_by=2) == {}
