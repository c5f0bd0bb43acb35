"""Real engines that go on where others stopped: with another number of ranks, at another ZeRO stage, with the same
numbers; and what DeepSpeed's own way there does not do."""

import json

import pytest
import torch

from tape_ds.training import checkpoint
from tape_ds.training.checkpoint import Manifest
from tape_ds.training.engine_state import EngineState, engine_folder
from tests.integration.conftest import forked

WORKER = "tests/integration/workers/reshaped.py"
KINDS = {
    "z1": (1, False, {}),
    "z2": (2, False, {}),
    "z3": (3, False, {}),
    "z3-cut": (3, False, {"sub_group_size": 40}),
    "z2-turns": (2, False, {"round_robin_gradients": True}),
    "z2-cpu": (2, False, {"offload_optimizer": {"device": "cpu"}}),
    "z3-cpu": (3, False, {"offload_optimizer": {"device": "cpu"}}),
    "z2-bf16": (2, True, {}),
    "z3-bf16": (3, True, {}),
}
"""By name: ZeRO stage, whether in bf16, further settings of ZeRO."""
TOLERANCE = {False: 1e-5, True: 2e-2}
"""Of a loss, fp32 and bf16: sums over ranks are taken in another order, and a bf16 weight has 8 bits."""


def carry_out(folder, jobs, processes):
    """Have the jobs done; losses of each after its save."""
    folder.mkdir(exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    ended = forked(WORKER, "--folder", str(folder), processes=processes)
    assert ended.code == 0, ended.output[-4000:]
    return json.loads((folder / "done.json").read_text())


def job(name, kind, resume=None, stage=None):
    """One for the worker."""
    before, bf16, settings = KINDS[kind]
    stage = stage or before
    fields = {"name": name, "stage": stage, "bf16": bf16, "zero": settings if stage == before else {}}
    return fields | {"resume": None if resume is None else str(resume)}


def sealed(folder, stage, processes):
    """What an engine saved, as a committed checkpoint."""
    files = {
        path.relative_to(folder).as_posix(): checkpoint.entry(path) for path in folder.rglob("*") if path.is_file()
    }
    done = folder.parent / "runs" / folder.name / "checkpoint-3"
    done.parent.mkdir(parents=True)
    checkpoint.commit(folder, done, Manifest(step=3, processes=processes, stage=stage, files=files, identity={}))
    return done


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """By (kind, ranks): an engine's checkpoint and its losses thereafter, for two ranks and for one."""
    found = {}
    for processes in (2, 1):
        folder = tmp_path_factory.mktemp(f"of{processes}")
        losses = carry_out(folder, [job(kind, kind) for kind in KINDS], processes)
        for kind, after in losses.items():
            found[kind, processes] = sealed(folder / kind, KINDS[kind][0], processes), after
    return found


def gone_on(saved, folder, wishes, processes):
    """Go on with so many ranks; (kind, ranks, stage) -> what the engine made of it, losses.

    Args:
        wishes: (kind, ranks before, stage wanted) of each.
    """
    names = ["-".join(map(str, wish)) for wish in wishes]
    jobs = [
        job(name, kind, saved[kind, before][0], stage)
        for name, (kind, before, stage) in zip(names, wishes, strict=True)
    ]
    losses = carry_out(folder, jobs, processes)
    return {wish: (folder / name, losses[name]) for wish, name in zip(wishes, names, strict=True)}


def assert_gone_on_alike(saved, outcomes):
    """The engine holds what was saved, bit for bit, and computes the losses that would have come."""
    for (kind, before, stage), (resumed, losses) in outcomes.items():
        origin, expected = saved[kind, before]
        was, now = (EngineState(engine_folder(folder)) for folder in (origin, resumed))
        assert now.stage == stage and was.shapes == now.shapes
        for name in was.shapes:
            for key in (None, "exp_avg", "exp_avg_sq"):
                assert torch.equal(was.whole(name, key), now.whole(name, key)), (kind, before, stage, name, key)
        settings = [(group["lr"], group["weight_decay"]) for group in now.optimizer["param_groups"]]
        assert all(flat["step"] == 3 for flat in now.optimizer["state"].values())
        assert settings == [(1e-2, 0.1), (1e-2, 0.0), (3e-2, 0.0)]
        assert losses == pytest.approx(expected, abs=TOLERANCE[KINDS[kind][1]]), (kind, before, stage)


def test_two_ranks_become_one_at_every_stage(saved, tmp_path):
    """With and without a change of stage; the losses are those of the two ranks, going on."""
    wishes = [(kind, 2, stage) for kind in ("z1", "z2", "z3", "z2-bf16", "z3-bf16") for stage in (1, 2, 3)]
    assert_gone_on_alike(
        saved,
        gone_on(
            saved,
            tmp_path,
            [*wishes, *((kind, 2, stage) for kind in ("z3-cut", "z2-cpu", "z3-cpu") for stage in (2, 3))],
            1,
        ),
    )


def test_one_rank_becomes_two_and_stages_change_among_two(saved, tmp_path):
    wishes = [("z1", 1, 1), ("z2", 1, 2), ("z3", 1, 3), ("z3-cut", 1, 3), ("z3-bf16", 1, 3), ("z2-bf16", 1, 3)]
    wishes += [("z1", 2, 3), ("z2", 2, 3), ("z3", 2, 1), ("z3", 2, 2), ("z2-bf16", 2, 3), ("z3-bf16", 2, 2)]
    assert_gone_on_alike(saved, gone_on(saved, tmp_path, wishes, 2))


@pytest.mark.slow
def test_two_ranks_become_four(saved, tmp_path):
    wishes = [("z1", 2, 1), ("z2", 2, 2), ("z3", 2, 3), ("z3-cut", 2, 3), ("z2", 2, 3), ("z3", 2, 1), ("z3-bf16", 2, 3)]
    assert_gone_on_alike(saved, gone_on(saved, tmp_path, wishes, 4))
