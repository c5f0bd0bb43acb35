"""Runs of a comparison: which stored result is whose, and what is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tape_ds import results
from tape_ds.errors import UserError
from tape_ds.training.comparison import runs
from tape_ds.training.recipe import pretraining

AUTO = ["--output_dir", "out", "--resume", "auto"]
LAUNCHER = Path("launchers/pretrain_c4.py")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def planned(*behind, ignored=()):
    own = ["--output_dir", "out", *behind]
    return runs.Planned("one", LAUNCHER, own, pretraining.load(own, 2), ignored)


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

    with pytest.raises(UserError) as caught:
        runs.plan_all({"a": ["--max_step", "4"], "b": ["--max_step", "4", "--window", "1"]}, LAUNCHER, load)
    assert [problem.field for problem in caught.value.problems] == ["max_step", "window"]
    found = runs.plan_all({"a": [], "b": ["--seed", "3"]}, LAUNCHER, load, ignored=("seed",))
    assert [(run.label, run.recipe.trainer_value("seed"), run.ignored) for run in found] == [
        ("a", 42, ("seed",)),
        ("b", 3, ("seed",)),
    ]


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
