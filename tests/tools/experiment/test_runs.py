"""Runs of an experiment: whose a stored result is, what is started, and what is done only once."""

import dataclasses
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tape_ds import results
from tape_ds.errors import UserError
from tape_ds.installation import ROOT
from tools.experiment import runs
from tools.experiment.runs import ExperimentWork, Starting
from tools.experiment.table import Experiment

TRAIN = ["launch", "launchers/pretrain_c4.py"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def experiment(**changes):
    return Experiment.build(
        {"about": "x", "recipe": "tiny", "arms": {"a": {}, "b": {"learning_rate": 0.5}}} | changes
    )


def plan(*words, **changes):
    return runs.plan(experiment(**changes), words, Path("o"), 2)


def store(run, finished=True, **other):
    begun = results.collect(config={**run.recipe.as_dict(), **other})
    results.save(begun.finish({}) if finished else begun, run.folder / "results" / "run.json")


class Fake(Starting):
    """Leaves what a command would leave, a launcher its result, and counts the commands."""

    def run_command(self, words, log):
        done.append(words)
        log.parent.mkdir(parents=True, exist_ok=True)
        if words[0] == "launch" and words[1] == TRAIN[1]:
            store(next(run for run in planned if run.arguments == words[2:-2]))
        return 3 if "fail" in words else 0


done, planned = [], []


@pytest.fixture
def work():
    """Two runs of which each is scored by two commands."""
    asked = experiment(score=["python one {run}", "python two {run}"])
    done.clear()
    planned[:] = runs.plan(asked, [], Path("o"), 2)
    return ExperimentWork("x", asked, Path("o"), Fake(2))


def test_a_result_belongs_to_the_recipe_it_was_made_with():
    run, other = plan()
    assert run.folder == Path("o/a") and run.result() is None
    store(run, finished=False)
    assert run.result() is None, "an unfinished run is not complete"
    store(run, output_dir="elsewhere", resume_from_checkpoint="auto")
    assert run.result() is not None
    assert plan("--learning_rate", "0.25")[0].result() is None and not other.is_same(
        run.recipe.as_dict()
    )


def test_a_result_has_values_of_its_own_where_the_recipe_leaves_them_to_the_plan():
    run = plan("--activation_checkpointing", "auto", "--per_device_train_batch_size", "auto")[0]
    stored = {
        **run.recipe.as_dict(),
        "activation_checkpointing": True,
        "per_device_train_batch_size": 2,
    }
    stored |= {
        "checkpoint_layers": "selective",
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    }
    assert run.is_same(stored) and not run.is_same(stored | {"learning_rate": 0.25})
    assert not plan()[0].is_same(stored)


def test_each_seed_is_run_for_all_arms_before_the_next():
    """What was stopped is then an experiment of the first seeds."""
    found = plan(seeds=[42, 7], reference="b")
    assert [(run.label, run.folder.name, run.seed) for run in found] == [
        ("a, seed 42", "a", 42),
        ("b, seed 42", "b", 42),
        ("a, seed 7", "a_seed_7", 7),
        ("b, seed 7", "b_seed_7", 7),
    ]
    assert [run.recipe.trainer.learning_rate for run in plan("--learning_rate", "0.25")] == [
        0.25,
        0.5,
    ]


def test_an_arm_that_no_seed_changes_is_run_once():
    arms = {"yarn": {"method": "yarn", "rope_parameters": {}}, "lora": {}}
    found = plan(recipe="demo", arms=arms, seeds=[0, 1], fields={"passkey_lengths": []})
    assert [run.label for run in found] == ["yarn, seed 0", "lora, seed 0", "lora, seed 1"]
    assert len(plan(recipe="demo", arms=arms, seeds=[0, 1])) == 4, "a seed draws prompts"


def test_problems_of_all_recipes_are_in_one_message():
    with pytest.raises(UserError) as caught:
        plan(arms={"a": {"max_step": 4}, "b": {"max_step": 4, "window": 1}})
    assert [problem.field for problem in caught.value.problems] == ["max_step", "window"]
    with pytest.raises(UserError, match="would share the folder"):
        plan(arms={"x y": {}, "x/y": {}})


@pytest.mark.parametrize(
    "field, value, named", [("eval_lengths", [64], "eval_lengths"), ("max_steps", 9, "tokens")]
)
def test_arms_that_do_not_compare_are_refused(field, value, named):
    arms = {"a": {}, "b": {field: value}}
    with pytest.raises(UserError, match=f"{named} = .*differs between arms"):
        plan(arms=arms)
    assert len(plan(arms=arms, may_differ=[named])) == 2


def test_everything_is_done_once(work):
    assert [log for _, log in work.run_all(planned)] == [None, None]
    assert [words[:2] for words in done[:3]] == [
        TRAIN,
        ["python", "one"],
        ["python", "two"],
    ] and len(done) == 6
    assert [log for _, log in work.run_all(planned)] == [None, None] and len(done) == 6
    steps = planned[0].folder / runs.STEPS
    steps.write_text(
        json.dumps({k: v for k, v in json.loads(steps.read_text()).items() if "two" not in k})
    )
    assert work.scored(planned[0]) is None, "it was killed before its last command ended"
    work.run_one(planned[0])
    assert done[6:] == [["python", "two", "o/a"]]


def scoring(monkeypatch):
    """Have every scoring command leave a result as ``python -m evaluation`` does, which refuses to replace another."""
    plainly = Fake.run_command

    def run_command(self, words, log):
        if words[0] == "launch":
            return plainly(self, words, log)
        done.append(words)
        path = Path(words[2], "evaluation", words[1], "perplexity.json")
        if path.exists():
            return 2
        results.save(results.collect(command=words).finish({"perplexity": []}), path)
        return 0

    monkeypatch.setattr(Fake, "run_command", run_command)


def test_a_run_that_was_trained_again_is_scored_again(work, monkeypatch):
    scoring(monkeypatch)
    work.run_one(planned[0])
    stored = results.load("o/a/results/run.json")
    results.save(
        dataclasses.replace(stored, finished="2999-01-01T00:00:00+00:00"), "o/a/results/run.json"
    )
    assert work.run_one(planned[0]) is None
    assert [words[1] for words in done[3:]] == ["one", "two"]


def test_what_failed_is_named_and_not_scored(work):
    failing = ExperimentWork(
        "x", experiment(score=["python fail", "python never"]), Path("o"), Fake(2)
    )
    log = failing.run_one(planned[0])
    assert log.parent == Path("o/a") and "fail" in log.name and done[-1] == ["python", "fail"]
    assert failing.scored(planned[0]) is None and planned[0].result() is not None


def test_a_folder_without_a_recipe_is_moved_and_not_resumed(work):
    """Its checkpoint may be of another recipe."""
    Path("o/a/checkpoint-3").mkdir(parents=True)
    work.run_one(planned[0])
    assert Path("o/a.1/checkpoint-3").is_dir()
    Path("o/b").mkdir()
    (Path("o/b") / runs.RECIPE).write_text(json.dumps(planned[1].stored()))
    work.run_one(planned[1])
    assert not Path("o/b.1").exists(), "a folder with the run's own recipe is resumed"


def test_a_recipe_with_a_credential_is_stored_without_it_and_still_the_runs_own():
    token = "hf_" + "a" * 30
    run = plan("--run_name", token)[0]
    assert token not in json.dumps(run.stored())
    store(run)
    assert run.result() is not None


def test_jobs_run_at_the_same_time(work, monkeypatch):
    both = threading.Barrier(2, timeout=60)
    monkeypatch.setattr(
        ExperimentWork, "run_one", lambda self, run: None if both.wait() in (0, 1) else run
    )
    two = ExperimentWork("x", work.experiment, Path("o"), work.starting, jobs=2)
    assert [log for _, log in two.run_all(planned)] == [None, None]


def test_a_run_that_was_stored_by_an_older_version_is_the_same():
    run = plan()[0]
    older = run.recipe.as_dict()
    older["stream_lanes"] = older.pop("stream_workers")
    older["launcher"] = "its_former_name"
    del older["allow_cpu"]  # as before there was this field, which then counts as its default
    assert run.is_same(older) and not run.is_same(older | {"stream_lanes": 1})
    assert not plan("--allow_cpu", "true")[0].is_same(older)


def test_commands_are_started_with_this_python_and_logged(monkeypatch):
    commands = []

    def start(command, stdout, **_):
        commands.append(command)
        stdout.write("what it prints\n")
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(runs, "get_free_port", lambda: 7)
    for starting in (Starting(1), Starting(3), Starting(3, "deepspeed --hostfile hosts")):
        assert starting.run_command([*TRAIN, "--seed", "1"], Path("log.txt")) == 7
    script = [str(ROOT / TRAIN[1]), "--seed", "1"]
    runner = [sys.executable, "-m", "deepspeed.launcher.runner"]
    local = [*runner, "--master_port", "7", "--num_accelerators", "3"]
    assert commands == [
        [sys.executable, *script],
        [*local, *script],
        [*runner, "--hostfile", "hosts", *script],
    ]
    assert Path("log.txt").read_text() == "what it prints\n"
