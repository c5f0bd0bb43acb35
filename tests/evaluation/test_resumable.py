"""An evaluation resumes where it was killed, is not repeated, and replaces no other result."""

import errno
import fcntl
import json
import multiprocessing
import os
import pickle
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import distributed

from tape_ds import results
from tape_ds.errors import DiskError, Problem, UserError
from tape_ds.scoring import resumable
from tape_ds.scoring.resumable import Evaluation
from tests.evaluation.test_models import found

MODEL = {"address": "here", "kind": "trained", "sha256": "abc", "dtype": "float32"}


def evaluation(folder, **changes):
    fields = {
        "model": MODEL,
        "config": {"lengths": (1, 2)},
        "data": {"stdlib": "f"},
        "seed": 0,
    } | changes
    return Evaluation("passkey", folder, **fields)


class Work:
    """Squares numbers, remembers which, and fails at one of them, as a killed process would."""

    def __init__(self, fails_at=None):
        self.seen = []
        self.fails_at = fails_at

    def __call__(self, number):
        if number == self.fails_at:
            raise KeyboardInterrupt
        self.seen.append(number)
        return {"square": number**2, "third": number / 3}


JOBS = [(f"job {number}", number) for number in range(6)]
WHOLE = {f"job {number}": {"square": number**2, "third": number / 3} for number in range(6)}


def interrupted(folder, at, **changes):
    with pytest.raises(KeyboardInterrupt):
        evaluation(folder, **changes).run_jobs(JOBS, Work(fails_at=at))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": MODEL | {"sha256": "abd"}},
        {"model": MODEL | {"dtype": "bfloat16"}},
        {"config": {"lengths": (1, 3)}},
        {"data": {"stdlib": "g"}},
        {"seed": 1},
    ],
)
def test_pieces_of_another_evaluation_are_not_taken(tmp_path, changes):
    interrupted(tmp_path, at=3)
    work = Work()
    assert evaluation(tmp_path, **changes).run_jobs(JOBS, work) == WHOLE
    assert work.seen == list(range(6))


def test_the_same_weights_under_another_name_are_the_same_model(tmp_path):
    interrupted(tmp_path, at=3)
    work = Work()
    assert evaluation(tmp_path, model=MODEL | {"address": "moved"}).run_jobs(JOBS, work) == WHOLE
    assert work.seen == [3, 4, 5]


def test_another_version_of_a_library_is_another_evaluation(tmp_path, monkeypatch):
    interrupted(tmp_path, at=3)
    monkeypatch.setattr(results, "versions", lambda: {"torch": "0.0"})
    work = Work()
    evaluation(tmp_path).run_jobs(JOBS, work)
    assert work.seen == list(range(6))


def test_the_result_is_stored_and_the_journal_gone(tmp_path):
    mine = evaluation(tmp_path)
    assert mine.stored() is None
    found = mine.run_jobs(JOBS, Work())
    mine.finish({"found": found, "cost": {"seconds": 1.5}})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["passkey.json"]
    stored = evaluation(tmp_path).stored()
    assert stored.figures["found"] == WHOLE
    assert (stored.model["sha256"], stored.config) == (
        "abc",
        {"evaluation": "passkey", "lengths": [1, 2]},
    )


def test_an_interrupted_evaluation_stores_what_an_uninterrupted_one_does(tmp_path):
    """Except for its times and its cost, byte for byte."""
    interrupted(tmp_path / "two", at=3)
    for folder in (tmp_path / "one", tmp_path / "two"):
        mine = evaluation(folder)
        mine.finish({"found": mine.run_jobs(JOBS, Work())})
    contents = [
        json.loads((tmp_path / name / "passkey.json").read_text()) for name in ("one", "two")
    ]
    for content in contents:
        assert content.pop("started") and content.pop("finished")
    assert json.dumps(contents[0]) == json.dumps(contents[1])


def finished(folder, **changes):
    mine = evaluation(folder, **changes)
    mine.finish({"found": mine.run_jobs(JOBS, Work())})


def test_another_result_in_the_folder_stays(tmp_path):
    finished(tmp_path, seed=7)
    mine = evaluation(tmp_path, config={"lengths": (9,)})
    with pytest.raises(UserError, match=r"other: config.lengths, seed\).*\n.*--overwrite"):
        mine.stored()
    assert mine.stored(overwrite=True) is None
    mine.path.write_text("[]")
    with pytest.raises(UserError, match="is not a result"):
        mine.stored()
    mine.path.unlink()
    mine.path.symlink_to("a disk that is not mounted")
    with pytest.raises(UserError, match="is not a result"):
        mine.stored()


def test_a_person_s_table_is_not_replaced(tmp_path):
    """An evaluation's tables and texts replaced files of their names where no result of it was."""
    table = tmp_path / "passkey.csv"
    table.write_text("mine")
    mine = evaluation(tmp_path)
    with pytest.raises(UserError, match=r"passkey\.csv in it would be replaced.*\n.*--overwrite"):
        mine.stored(tables=[table])
    assert mine.stored(True, tables=[table]) is None and table.read_text() == "mine"
    mine.journal.mkdir()  # it was killed after it had written its texts
    assert mine.stored(required=[table]) is None
    mine.finish({"found": 1})
    assert mine.stored(tables=[table]) is not None


def test_journals_of_two_killed_processes_are_taken(tmp_path):
    """The first of them was killed in the middle of a line."""
    mine = evaluation(tmp_path)
    mine.journal.mkdir(parents=True)
    (mine.journal / "0001.jsonl").write_text(json.dumps(["job 1", WHOLE["job 1"]]) + "\n")
    (mine.journal / "0000.jsonl").write_text(
        json.dumps(["job 0", WHOLE["job 0"]]) + '\n["job 4", {"squ'
    )
    work = Work()
    assert mine.run_jobs(JOBS, work) == WHOLE and work.seen == [2, 3, 4, 5]
    lines = (mine.journal / "0000.jsonl").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == ["job 0", "job 2", "job 3", "job 4", "job 5"]


def test_two_at_once_in_one_folder_are_refused(tmp_path):
    mine = evaluation(tmp_path)
    mine.journal.mkdir(parents=True)
    with open(mine.journal / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is running this evaluation"):
            mine.run_jobs(JOBS, Work())
    assert mine.run_jobs(JOBS, Work()) == WHOLE


def test_where_results_go(run, base):
    folder = run()
    assert resumable.folder(None, found(folder)) == folder / "evaluation"
    assert resumable.folder(None, found(folder / "trained")) == folder / "evaluation"
    (folder / "trained").rename(folder / "checkpoint-8")
    assert (
        resumable.folder(None, found(folder / "checkpoint-8"))
        == folder / "evaluation" / "checkpoint-8"
    )
    plain = found(base)
    assert resumable.folder(None, plain) == Path("runs/evaluation") / str(base).strip("/").replace(
        "/", "--"
    )


def test_a_disk_that_fills_up_keeps_what_was_found(tmp_path, monkeypatch):
    sync, left = os.fsync, [3]

    def refuse(file):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskError, match=r"--output = .* is full"):
        evaluation(tmp_path).run_jobs(JOBS, Work())
    monkeypatch.undo()
    work = Work()
    assert evaluation(tmp_path).run_jobs(JOBS, work) == WHOLE
    # what was not known to be on the disk may be there all the same
    assert work.seen in (
        [3, 4, 5],
        [4, 5],
    )


def hanging_rank(folder, rank):
    """One of two processes; the second hangs in its second piece."""
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    resumable.STUCK_SECONDS = 2.0

    def work(number):
        time.sleep(120 if number == 3 else 0.01)
        return number

    evaluation(folder / "out").run_jobs(JOBS, work)


def test_an_evaluation_of_which_a_process_hangs_ends_with_its_stacks(tmp_path):
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=hanging_rank, args=(tmp_path, rank), daemon=True) for rank in (0, 1)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    codes = [each.exitcode for each in ranks]
    for each in ranks:
        each.kill()
    assert codes == [4, 4]
    assert "in work" in (tmp_path / "out" / "stacks" / "rank-1.txt").read_text()


def test_the_first_process_s_problem_reaches_all(monkeypatch):
    """No process waits for one that has left."""
    sent = []

    def first(own):
        sent.append(pickle.dumps(own))
        return pickle.loads(sent[0])

    def make():
        raise UserError(Problem("--output", "there", "is taken", "name another"))

    for rank in (0, 1):
        monkeypatch.setattr(
            resumable, "RankSync", partial(SimpleNamespace, rank=rank, world=2, first=first)
        )
        with pytest.raises(UserError, match="--output = 'there': is taken"):
            resumable.from_first(
                make if rank == 0 else lambda: pytest.fail("only the first process makes it")
            )
