"""A few steps recorded, and nothing else of the run touched."""

import gzip
import json
import re
from collections import Counter

import pytest

from tape_ds.config.sections import Profile
from tape_ds.training import profiling
from tape_ds.training.callbacks import ApplyMemorySavings
from tape_ds.training.profiling import StepProfiler
from tests.training.test_trainer import STEPS, build, losses


def train(folder, profile=None, memory=None, **arguments):
    """A short training, recorded or not."""
    trainer = build(folder, save_strategy="no", gradient_checkpointing=memory is not None, **arguments)
    if memory is not None:
        trainer.add_callback(ApplyMemorySavings(memory))
    if profile is not None:
        trainer.add_callback(StepProfiler(trainer, profile, folder))
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One recorded run: its folder and its trainer."""
    folder = tmp_path_factory.mktemp("profiled")
    return folder, train(folder, Profile(profile=True))


def test_what_is_left_in_the_folder(recorded):
    folder, *_ = recorded
    assert sorted(path.name for path in (folder / "profile").iterdir()) == ["summary_rank0.md", "trace_rank0.json.gz"]


def test_the_window_has_the_steps_that_were_named(recorded):
    """The third and fourth of six."""
    folder, *_ = recorded
    with gzip.open(folder / "profile" / "trace_rank0.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event["name"].startswith("ProfilerStep")]
    assert Counter(names) == {"ProfilerStep#2": 1, "ProfilerStep#3": 1}


def test_the_text_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(profiling, "ROWS", 10_000)  # all operators: which ones are slow is the CPU's
    train(tmp_path, Profile(profile=True, profile_start=1, profile_steps=1))
    printed = capsys.readouterr().out
    assert (tmp_path / "profile" / "summary_rank0.md").read_text().strip() in printed
    assert re.search(r"profile of rank 0: \S+trace_rank0\.json\.gz\n\n1 steps of", printed)
    assert "aten::mm" in printed


def test_a_run_is_the_same(recorded, tmp_path):
    plain = train(tmp_path)
    _, trainer = recorded
    assert losses(trainer) == losses(plain)


def test_a_window_that_the_run_does_not_reach_is_said(tmp_path, capsys):
    train(tmp_path, Profile(profile=True, profile_start=STEPS + 1))
    assert f"recorded no profile: the run ended before step {STEPS + 1}" in capsys.readouterr().out
    assert not (tmp_path / "profile").exists()


@pytest.mark.slow
def test_a_run_that_ends_within_the_window(tmp_path):
    train(tmp_path, Profile(profile=True, profile_start=STEPS, profile_steps=5))
    assert "\n1 steps of" in (tmp_path / "profile" / "summary_rank0.md").read_text()


def test_other_ranks_record_nothing(tmp_path):
    train(tmp_path, Profile(profile=True, profile_ranks=[1]))
    assert not (tmp_path / "profile").exists()


def test_a_disk_that_takes_nothing_costs_the_profile_alone(tmp_path, capsys):
    (tmp_path / "profile").write_text("in the way")
    trainer = train(tmp_path, Profile(profile=True))
    assert "PROFILE NOT STORED" in capsys.readouterr().out
    assert trainer.state.global_step == STEPS
