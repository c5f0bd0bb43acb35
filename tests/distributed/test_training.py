"""Whole runs of the real trainer whose sequences or layers processes share: twenty steps are those of one process."""

import functools
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tape_ds.checkpoint.consolidation import consolidate
from tests.distributed.training_cases import (
    GLOBAL_BATCH,
    PAIRWISE,
    TOLERANCE,
    Plan,
    furthest,
    train,
)

SPECIAL = [
    Plan("SP2", stage=None),
    Plan("TP4", stage=1),
    Plan("TP2", stage=2, encoding="fire", heads="mqa"),
    Plan("SP2", stage=3, encoding="t5"),
    Plan("none", stage=3, method="lora", savings="selective"),
    Plan("none", stage=3, savings="tiles"),
]


WEIGHTED = [
    Plan("SP2", stage=2, weights="exact", steps=6),
    Plan("none", stage=3, weights="longce", savings="offloaded", steps=6),
    Plan("TP2", stage=2, weights="longce", savings="tiles", steps=6),
    Plan("TP2", stage=1, weights="exact", steps=6),
    Plan("SP2", stage=3, weights="longce", method="lora"),
]
"""Targets with weights; the sequences of a step have unequal lengths, so under ZeRO-3 some processes would read fewer
short contexts than others."""


def named(plan):
    engine = "alone" if plan.stage is None else f"zero{plan.stage}"
    return "-".join(
        (plan.share, engine, plan.encoding, plan.heads, plan.method, plan.savings, plan.weights)
    )


@pytest.fixture(scope="module")
def by_one_process(tmp_path_factory):
    """The same run by this process, without an engine."""

    @functools.cache
    def run(plan):
        return train(str(tmp_path_factory.mktemp("alone")), plan)

    return run


@pytest.mark.parametrize("plan", [*PAIRWISE, *SPECIAL], ids=named)
def test_twenty_steps_are_those_of_one_process(group, by_one_process, tmp_path, plan):
    """Losses as logged, norms of the gradients, and the weights in the end; some parts of sequences have no target.

    Every two of: tokens or layers shared, ZeRO's stage, encoding, heads, method and sequences, recomputed and
    offloaded. Their product takes hours: ``make scale`` runs it.
    """
    alone = by_one_process(plan.numbers)
    shared = group.run(train, str(tmp_path), plan)[0]
    assert shared["sequences"] == alone["sequences"] == GLOBAL_BATCH
    assert len(shared["losses"]) == plan.steps
    assert shared["losses"][-1] != shared["losses"][0]
    found = furthest(shared, alone)
    assert all(found[name] <= TOLERANCE[name] for name in TOLERANCE), found


@pytest.mark.parametrize(
    "plan",
    [*WEIGHTED[:3], *(pytest.param(plan, marks=pytest.mark.slow) for plan in WEIGHTED[3:])],
    ids=named,
)
def test_weights_are_those_of_one_process(group, by_one_process, tmp_path, plan):
    """The loss, its plain part and the mean weight as logged, and every weight of the model in the end."""
    alone = by_one_process(plan.numbers)
    shared = group.run(train, str(tmp_path), plan)[0]
    found = furthest(shared, alone)
    assert all(found[name] <= TOLERANCE[name] for name in TOLERANCE), found
    for mine, other in zip(shared["others"], alone["others"], strict=True):
        assert mine == pytest.approx(other, rel=1e-5)
        assert other[1] != pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    "share, stage", [("none", 3), pytest.param("TP2", 1, marks=pytest.mark.slow)]
)
def test_a_mean_of_checkpoints_is_that_of_one_process(
    group, by_one_process, tmp_path, share, stage
):
    """Of parameters that ranks hold in shards, or in pieces."""
    plan = Plan(share, stage=stage, steps=6, save_steps=2, average=3)
    alone = by_one_process(plan.numbers)
    shared = group.run(train, str(tmp_path), plan)[0]
    assert furthest(shared, alone)["weights"] <= TOLERANCE["weights"]
    last = by_one_process(replace(plan.numbers, average=0))
    assert furthest(shared, last)["weights"] > 100 * TOLERANCE["weights"]


@pytest.fixture(scope="module")
def interrupted(group, tmp_path_factory):
    """By what is shared, a run of four steps with a checkpoint half way: what it found, and that folder."""

    @functools.cache
    def run(share):
        folder = tmp_path_factory.mktemp("whole")
        plan = Plan(share, stage=2, steps=4, save_steps=2)
        return group.run(train, str(folder), plan)[0], folder / "checkpoint-2"

    return run


def test_operations_and_room_on_disk_are_counted_once(interrupted, tmp_path):
    """Four ranks read two batches; a checkpoint of pieces has whole weights."""
    alone = train(str(tmp_path), Plan(steps=4))
    for share in ("SP2", "TP2"):
        found = interrupted(share)[0]
        assert found["flos"] == pytest.approx(alone["flos"], rel=1e-12)
        assert found["needed"] == interrupted("TP2")[0]["needed"]


@pytest.mark.parametrize("share", ["SP2", "SP4"])
def test_a_run_goes_on_however_its_sequences_were_shared(group, interrupted, tmp_path, share):
    """ZeRO's files are the same whoever read which sequence; with the same sharing it goes on to the last digit."""
    whole, checkpoint = interrupted("SP2")
    plan = Plan(share, stage=2, steps=4)
    rest = group.run(train, str(tmp_path / "rest"), plan, resume=str(checkpoint))[0]
    tolerance = 0 if share == "SP2" else 1e-6
    assert rest["losses"][-2:] == pytest.approx(whole["losses"][-2:], rel=tolerance, abs=0)


def test_a_model_in_pieces_goes_on_to_the_last_digit(group, interrupted, tmp_path):
    whole, checkpoint = interrupted("TP2")
    plan = Plan("TP2", stage=2, steps=4)
    rest = group.run(train, str(tmp_path / "rest"), plan, resume=str(checkpoint))[0]
    assert rest["losses"][-2:] == whole["losses"][-2:]
    assert all((rest["weights"][name] == weight).all() for name, weight in whole["weights"].items())


def test_a_model_in_pieces_goes_on_at_another_stage(group, interrupted, tmp_path):
    """Each piece is divided anew over the ranks that share it."""
    whole, checkpoint = interrupted("TP2")
    rest = group.run(
        train, str(tmp_path / "rest"), Plan("TP2", stage=1, steps=4), resume=str(checkpoint)
    )[0]
    assert rest["losses"][-2:] == pytest.approx(whole["losses"][-2:], rel=1e-6, abs=0)


def test_a_checkpoint_of_pieces_holds_whole_weights(group, interrupted, tmp_path):
    """The folder of trained weights in it, and what tape-ds consolidate makes of the engine's parts in fp32."""
    _, checkpoint = interrupted("TP2")
    half = group.run(train, str(tmp_path / "half"), Plan("TP2", stage=2, steps=2))[0]
    saved = load_file(checkpoint / "model.safetensors")
    assert saved and all((saved[name].numpy() == half["weights"][name]).all() for name in saved)
    consolidate(checkpoint, tmp_path / "one")
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert one.keys() == saved.keys() and all(torch.equal(one[name], saved[name]) for name in saved)
