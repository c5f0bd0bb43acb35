"""A few steps recorded, and nothing else of the run touched."""

import gzip
import json
from collections import Counter

from tape_ds.config.sections import Profile
from tape_ds.training.profiling import StepProfiler
from tests.training.test_trainer import STEPS, build, losses


def train(folder, profile=None):
    trainer = build(folder, save_strategy="no")
    if profile is not None:
        trainer.add_callback(StepProfiler(trainer, profile, folder))
    trainer.train()
    return trainer


def test_the_window_has_the_steps_that_were_named_and_the_run_is_the_same(tmp_path):
    """The third and fourth of six."""
    recorded, plain = train(tmp_path, Profile(profile=True)), train(tmp_path / "plain")
    assert losses(recorded) == losses(plain)
    with gzip.open(tmp_path / "profile" / "trace_rank0.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event["name"].startswith("ProfilerStep")]
    assert Counter(names) == {"ProfilerStep#2": 1, "ProfilerStep#3": 1}


def test_other_ranks_record_nothing_and_a_window_that_is_not_reached_is_reported(tmp_path, capsys):
    train(tmp_path, Profile(profile=True, profile_ranks=[1]))
    assert not (tmp_path / "profile").exists()
    train(tmp_path, Profile(profile=True, profile_start=STEPS + 1))
    assert "recorded no profile" in capsys.readouterr().out


def test_a_disk_that_takes_nothing_costs_the_profile_alone(tmp_path, capsys):
    (tmp_path / "profile").write_text("in the way")
    trainer = train(tmp_path, Profile(profile=True))
    assert "PROFILE NOT STORED" in capsys.readouterr().out
    assert trainer.state.global_step == STEPS
