"""Runs of a comparison: which stored result is whose, and what is started."""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tape_ds import results
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.recipe import pretraining
from tape_ds.training.comparison import runs
from tape_ds.training.comparison.arms import Arm

AUTO = ["--output_dir", "out", "--resume", "auto"]
LAUNCHER = Path("launchers/pretrain_c4.py")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def planned(*behind, ignored=()):
    own = ["--output_dir", "out", *behind]
    return runs.Planned("one", LAUNCHER, own, pretraining.load(own, 2), ignored)


def planned_as(label):
    return dataclasses.replace(planned(), label=label)


def store(run, finished=True):
    begun = results.collect(config=run.recipe.as_dict())
    results.save(begun.finish({}) if finished else begun, "out/results/run.json")


def test_a_result_belongs_to_the_recipe_it_was_made_with(tmp_path):
    run = planned()
    assert run.folder == Path("out") and run.result() is None
    store(run, finished=False)
    assert run.result() is None, "an unfinished run is not complete"
    store(run)
    assert run.result() is not None and planned("--resume_from_checkpoint", "true").result() is not None
    assert planned("--learning_rate", "0.5").result() is None
    assert planned("--learning_rate", "0.5", ignored=("learning_rate",)).result() is not None


def test_a_run_that_ends_well_without_its_result_has_failed(monkeypatch):
    started = []
    monkeypatch.setattr(runs, "launch", lambda *call: started.append(call) or 0)
    assert runs.carry_out(planned()) is False
    monkeypatch.setattr(runs, "launch", lambda *call: store(planned()) or 0)
    assert runs.carry_out(planned()) is True
    assert started == [(LAUNCHER, AUTO, 2, Path("out/log.txt"))]


def test_folders_set_aside_do_not_meet(monkeypatch, capsys):
    monkeypatch.setattr(runs, "launch", lambda *call: 1)
    for rate in ("0.1", "0.2", "0.3", "0.3"):
        assert runs.carry_out(planned("--learning_rate", rate)) is False
    assert sorted(path.name for path in Path().iterdir()) == ["out", "out.1", "out.2"]
    assert capsys.readouterr().out.count("is of another recipe, now in") == 2


def test_a_folder_that_says_nothing_is_not_gone_on_from(monkeypatch, capsys):
    """A run that somebody started by hand, at another learning rate, left its checkpoint: it would have been resumed,
    and its losses reported as this recipe's."""
    started = []
    monkeypatch.setattr(runs, "launch", lambda launcher, own, *rest: started.append(own) or 1)
    Path("out/checkpoint-3").mkdir(parents=True)
    runs.carry_out(planned())
    assert started == [AUTO] and Path("out.1/checkpoint-3").is_dir() and not Path("out/checkpoint-3").exists()
    assert "now in out.1" in capsys.readouterr().out
    Path("out.1/checkpoint-3").rename("out/checkpoint-3")
    runs.carry_out(planned())
    assert started[1] == AUTO and Path("out/checkpoint-3").is_dir(), "its own it goes on from"
    Path("out/recipe.json").write_text('{"seed"')
    runs.carry_out(planned())
    assert started[2] == AUTO and Path("out.2/checkpoint-3").is_dir()


def test_all_recipes_are_checked_and_a_shared_mistake_is_said_once():
    def load(own):
        return pretraining.load(own, 2)

    wrong = [Arm("a", {"max_step": 4}), Arm("b", {"max_step": 4, "window": 1})]
    with pytest.raises(UserError) as caught:
        runs.plan_all(wrong, LAUNCHER, load, passed_on=[], output=Path("o"))
    assert [(problem.field, problem.wrong[:3]) for problem in caught.value.problems] == [
        ("max_step", "unk"),
        ("window", "b: "),
    ], "whose mistake it is, where it is not everybody's"
    arms = [Arm("a"), Arm("b", {"max_steps": 7})]
    found = runs.plan_all(arms, LAUNCHER, load, passed_on=["--max_steps", "9"], output=Path("o"), ignored=("seed",))
    assert [(run.label, run.folder, run.recipe.trainer_value("max_steps"), run.ignored) for run in found] == [
        ("a", Path("o/a"), 9, ("seed",)),
        ("b", Path("o/b"), 7, ("seed",)),
    ]


def test_nothing_begins_once_the_page_could_not_be_written():
    done = []

    def work(run):
        done.append(run)
        time.sleep(0.05)

    def refuse():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        runs.compare([planned_as(str(number)) for number in range(12)], 2, work, refuse)
    assert 2 <= len(done) <= 6


def test_seeds_are_gone_through_over_all_arms():
    """So that a comparison that was stopped is one of the first seeds; a run of the recipe's own seed keeps its folder,
    so that seeds can be added to a comparison of one."""

    def load(own):
        return pretraining.load(own, 2)

    given = {"passed_on": [], "output": Path("o"), "seeds": [42, 7], "again": "b"}
    found = runs.plan_all([Arm("a"), Arm("b")], LAUNCHER, load, **given)
    assert [(run.label, run.folder.name, run.arm, run.seed, run.again) for run in found] == [
        ("a, seed 42", "a", "a", 42, False),
        ("b, seed 42", "b", "b", 42, False),
        ("b, seed 42 again", "b_again", "b", 42, True),
        ("a, seed 7", "a_seed_7", "a", 7, False),
        ("b, seed 7", "b_seed_7", "b", 7, False),
    ]
    with pytest.raises(UserError) as caught:
        runs.plan_all([Arm("a"), Arm("a seed 7"), Arm("x y"), Arm("x/y")], LAUNCHER, load, **given | {"again": None})
    assert [problem.value for problem in caught.value.problems] == [
        "a seed 7, seed 42 and a, seed 7",
        "x y, seed 42 and x/y, seed 42",
        "x y, seed 7 and x/y, seed 7",
    ]
    store(found[1])
    assert [run.label for run in found if run.folder.name == "b" and run._is_same(found[2].recipe.as_dict())]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_page_is_written_after_every_run_in_order(jobs, capsys):
    load = {"load": lambda own: pretraining.load(own, 2), "passed_on": [], "output": Path("o")}
    planned = runs.plan_all([Arm("a"), Arm("b")], LAUNCHER, **load, seeds=[1, 2])
    done, pages = [], []

    def work(run):
        done.append(run.label)
        return Path("log.txt") if run.label == "b, seed 1" else None

    assert runs.compare(planned, jobs, work, lambda: pages.append(len(pages)) or f"page {len(pages)}") == 1
    assert sorted(done) == sorted(run.label for run in planned) and pages == [0, 1, 2]
    told = capsys.readouterr()
    assert told.out == "page 3\n" and told.err == "FAILED: b, seed 1, see log.txt\n"
    for run in planned:
        results.save(results.collect(config=run.recipe.as_dict()).finish({}), run.folder / "results" / "run.json")
    assert runs.compare(planned, jobs, lambda run: None, lambda: pages.append("once")) == 0
    assert pages[3:] == ["once"], "of what was complete before, one page says all"


def test_jobs_run_at_the_same_time():
    both = threading.Barrier(2, timeout=20)
    planned = [planned_as(label) for label in "ab"]
    assert runs.compare(planned, 2, lambda run: None if both.wait() in (0, 1) else run.log, str) == 0
    with pytest.raises(UserError):
        runs.compare(planned, 2, lambda run: raise_if_any([Problem("result", "x", "none", "restore it")]), str)


@pytest.mark.parametrize("count", [0, -1])
def test_a_run_needs_a_process(count):
    assert [problem.field for problem in runs.check_processes(count)] == ["processes"]
    assert runs.check_processes(None) == runs.check_processes(3) == []


def test_deepspeeds_launcher_is_started_on_a_free_port(monkeypatch):
    """A fixed one would let only one comparison run on a machine."""
    calls = []

    def run(command, **options):
        calls.append(command)
        options["stdout"].write("what the run prints\n")
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", run)
    assert [runs.launch(LAUNCHER, ["--seed", "1"], 3, Path("log.txt")) for _ in range(2)] == [7, 7]
    first, second = calls
    assert first[:5] == [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", "3"]
    assert first[-3:] == [str(LAUNCHER), "--seed", "1"] and first != second, "two ports"
    assert Path("log.txt").read_text() == "what the run prints\n"


def test_a_single_process_is_started_by_itself(monkeypatch):
    """DeepSpeed's launcher took 8 seconds to start one, as long as the run's own imports."""
    calls = []

    def run(command, **options):
        calls.append(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", run)
    assert runs.launch(LAUNCHER, ["--seed", "1"], 1, Path("log.txt")) == 7
    assert runs.launch_module("evaluation", ["arithmetic", "--module"], 1, Path("log.txt")) == 7
    launched, module = calls
    assert launched == [sys.executable, str(LAUNCHER), "--seed", "1"]
    assert module == [sys.executable, "-m", "evaluation", "arithmetic", "--module"]


def test_a_recipe_with_a_credential_is_stored_without_it_and_still_the_runs_own():
    token = "hf_" + "a" * 30
    run = planned("--run_name", token)
    run.prepare_folder()
    assert token not in Path("out", runs.RECIPE).read_text()
    store(run)
    assert run.result() is not None
    run.prepare_folder()
    assert Path("out/results/run.json").is_file(), "it was not set aside as another recipe's"


def test_a_module_of_this_checkout_is_found_from_anywhere(monkeypatch):
    calls = []

    def run(command, **options):
        calls.append((command, options["env"]))
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert runs.launch_module("evaluation", ["arithmetic", "out"], 3, Path("log.txt")) == 7
    ((command, environment),) = calls
    assert command[-4:] == ["--module", "evaluation", "arithmetic", "out"]
    first, second = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "evaluation" / "__main__.py").is_file() and second == "elsewhere"
