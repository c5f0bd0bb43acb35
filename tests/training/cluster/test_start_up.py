"""The ranks of a job are compared before it starts: threads with one store stand for them."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import distributed

from tape_ds.errors import UserError
from tape_ds.training.cluster import record, roll_call, start_up
from tape_ds.training.cluster.comparison import Findings
from tape_ds.training.cluster.place import Place
from tape_ds.training.cluster.roll_call import RollCall


def recipe(output, **fields):
    given = {"seed": 1, "data_cache": str(output.parent), "output_dir": str(output)} | fields
    values = {"output_dir": str(output), "ddp_timeout": 20}
    return SimpleNamespace(as_dict=lambda: given, trainer_value=values.get)


@pytest.fixture
def job(monkeypatch):
    """Runs the check on three ranks, each with its own recipe and fingerprints; what came of it, and what was said."""
    monkeypatch.setattr(roll_call, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(record, "_LOOK_SECONDS", 0.01)
    store, own = distributed.HashStore(), threading.local()
    monkeypatch.setattr(roll_call, "current", lambda seconds=0: own.call)

    def run(of_rank):
        ended, said = {}, []

        def one(rank):
            own.call = RollCall(store, Place(rank, 3, 0, 1, rank, f"n{rank}"), said.append)
            try:
                ended[rank] = start_up.check(*of_rank(rank), said.append)
            except UserError as error:
                ended[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return ended, said

    return run


def test_alike_machines_go_on_and_leave_nothing_behind(job, tmp_path):
    ended, said = job(lambda rank: (recipe(tmp_path / "run"), {"text:x": "f"}))
    assert ended == {0: None, 1: None, 2: None} and said == [] and list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays(job, tmp_path):
    (tmp_path / "run").mkdir()
    job(lambda rank: (recipe(tmp_path / "run"), {}))
    assert list((tmp_path / "run").iterdir()) == [] and (tmp_path / "run").exists()


def test_a_machine_that_differs_is_named_on_all(job, tmp_path):
    ended, _ = job(lambda rank: (recipe(tmp_path / "run", seed=5 if rank == 1 else 1), {"text:x": f"{rank // 2}"}))
    assert len({str(error) for error in ended.values()}) == 1
    assert [problem.field for problem in ended[2].problems] == [
        "seed on node_rank 1 (n1)",
        "data text:x on node_rank 2 (n2)",
    ]


def test_a_folder_that_is_not_shared_is_refused(job, tmp_path):
    def of_rank(rank):
        (tmp_path / f"disk{rank}").mkdir()
        return recipe(tmp_path / f"disk{rank}" / "run", output_dir="run"), {}

    ended, _ = job(of_rank)
    (problem,) = ended[0].problems
    assert problem.field == "output_dir on node_rank 1 (n1), node_rank 2 (n2)" and "share" in problem.remedy
    assert not (tmp_path / "disk0" / "run").exists()


def test_a_disk_that_takes_nothing_is_left_to_the_runs_lock(job, tmp_path):
    (tmp_path / "file").touch()
    ended, _ = job(lambda rank: (recipe(tmp_path / "file" / "run", data_cache=str(tmp_path)), {}))
    assert ended == {0: None, 1: None, 2: None}


def test_what_does_no_harm_is_said_once(job, tmp_path, monkeypatch):
    monkeypatch.setattr(start_up, "_compare", lambda texts: Findings(warnings=["a clock is late"]).to_text())
    ended, said = job(lambda rank: (recipe(tmp_path / "run"), {}))
    assert ended == {0: None, 1: None, 2: None} and said == ["a clock is late"]


def test_a_job_on_one_machine_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(roll_call, "current", lambda seconds: None)
    start_up.check(recipe(Path("/nowhere")), {}, print)
