"""Whole runs of the real trainer whose rows are shared by processes: twenty steps are those of one process."""

import functools

import pytest

from tests.parallel.training_cases import GLOBAL_BATCH, PRODUCT, TOLERANCE, Plan, furthest, train

PLANS = [
    Plan(size=2, stage=None),
    Plan(size=2, stage=1),
    Plan(size=4, stage=2, encoding="alibi"),
    Plan(size=2, stage=3, encoding="tape scale", checkpointing=True),
    Plan(size=2, stage=3, method="tape+lora", pose=True, checkpointing=True),
]


def named(plan):
    engine = "alone" if plan.stage is None else f"zero{plan.stage}"
    return f"{plan.size}-{engine}-{plan.encoding}-{plan.method}" + "-recomputed" * plan.checkpointing


@pytest.fixture(scope="module")
def by_one_process(tmp_path_factory):
    """The same run by this process, without an engine."""

    @functools.cache
    def run(encoding, method, pose):
        plan = Plan(encoding=encoding, method=method, pose=pose)
        return train(str(tmp_path_factory.mktemp("alone")), plan)

    return run


@pytest.mark.parametrize("plan", PLANS, ids=named)
def test_twenty_steps_are_those_of_one_process(group, by_one_process, tmp_path, plan):
    """Losses as logged, norms of the gradients, and the weights in the end; some parts of rows have no target."""
    check(group, by_one_process, tmp_path, plan)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PRODUCT, ids=named)
def test_the_full_product(group, by_one_process, tmp_path, plan):
    check(group, by_one_process, tmp_path, plan)


def check(group, by_one_process, tmp_path, plan):
    """Both runs, and how far they are apart."""
    alone = by_one_process(plan.encoding, plan.method, plan.pose)
    shared = group.run(train, str(tmp_path), plan)[0]
    assert shared["rows"] == alone["rows"] == GLOBAL_BATCH
    assert len(shared["losses"]) == plan.steps
    assert shared["losses"][-1] != shared["losses"][0]
    found = furthest(shared, alone)
    assert all(found[name] <= TOLERANCE[name] for name in TOLERANCE), found


@pytest.fixture(scope="module")
def interrupted(group, tmp_path_factory):
    """A run of four steps with a checkpoint half way: what it found, and that folder."""
    folder = tmp_path_factory.mktemp("whole")
    return group.run(train, str(folder), Plan(size=2, stage=2, steps=4, save_steps=2))[0], folder / "checkpoint-2"


def test_floating_point_operations_are_counted_once(interrupted, tmp_path):
    """Four ranks read two batches."""
    assert interrupted[0]["flos"] == train(str(tmp_path), Plan(steps=4))["flos"]


@pytest.mark.parametrize("size", [2, 4])
def test_a_run_goes_on_however_its_rows_were_shared(group, interrupted, tmp_path, size):
    """ZeRO's files are the same whoever read which row; with the same sharing it goes on to the last digit."""
    whole, checkpoint = interrupted
    rest = group.run(train, str(tmp_path / "rest"), Plan(size=size, stage=2, steps=4), resume=str(checkpoint))[0]
    tolerance = 0 if size == 2 else 1e-6
    assert rest["losses"][-2:] == pytest.approx(whole["losses"][-2:], rel=tolerance, abs=0)
