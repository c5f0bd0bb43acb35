"""A few steps recorded, and nothing else of the run touched."""

import json
import re

import pytest

from tape_ds import results
from tape_ds.training import profiling, trace
from tape_ds.training.levers import ApplyLevers
from tape_ds.training.profiling import StepProfiler
from tape_ds.training.recipe.memory import Memory
from tape_ds.training.recipe.profile import Profile
from tests.training.test_trainer import STEPS, build, losses


def train(folder, profile=None, memory=None, **arguments):
    """A short training, recorded or not."""
    trainer = build(folder, save_strategy="no", activation_checkpointing=memory is not None, **arguments)
    if memory is not None:
        trainer.add_callback(ApplyLevers(memory))
    if profile is not None:
        trainer.add_callback(StepProfiler(trainer, profile, folder))
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One recorded run: its folder, its trainer."""
    folder = tmp_path_factory.mktemp("profiled")
    return folder, train(folder, Profile(profile=True))


def names_of(trainer):
    """Attributes that recording may have left on instances."""
    objects = {id(of): of for of, _, _ in profiling.marks_of(trainer)}.values()
    return {(type(of).__name__, name) for of in objects for name in vars(of) if callable(vars(of)[name])}


def test_what_is_left_in_the_folder(recorded):
    folder, _ = recorded
    assert sorted(path.name for path in (folder / "profile").iterdir()) == [
        "summary_rank0.json",
        "summary_rank0.md",
        "trace_rank0.json.gz",
    ]


def test_the_window_has_the_steps_that_were_named(recorded):
    """The third and fourth of six, the reading of their rows among them."""
    folder, _ = recorded
    events = trace.read(folder / "profile" / "trace_rank0.json.gz")
    marks = [event["name"].removeprefix(trace.PHASE) for event in events if event["name"].startswith(trace.PHASE)]
    assert {name: marks.count(name) for name in marks} == {"data": 2, "forward": 2, "backward": 2, "optimizer": 2}


def test_the_summary_says_where_the_time_went(recorded):
    folder, _ = recorded
    stored = results.load(folder / "profile" / "summary_rank0.json")
    assert stored.figures["steps"] == 2 and stored.config["profile_start"] == 3
    parts = stored.figures["parts"]
    expected = {"attention", "rotation", "position updates", "feed-forward", "norms", "head and loss", "embedding"}
    assert expected <= set(parts)
    for part in expected - {"embedding"}:
        assert parts[part]["forward"] > 0 and parts[part]["backward"] > 0, part
    total = sum(time for times in parts.values() for time in times.values())
    assert total == pytest.approx(stored.figures["window"], rel=1e-3)
    assert sum(stored.figures["phases"].values()) == pytest.approx(stored.figures["window"], rel=1e-6)


def test_the_summary_says_what_is_held(recorded):
    """fp32 weights, and two moments (and a step count of 4 bytes) for each that is trained."""
    folder, trainer = recorded
    held = results.load(folder / "profile" / "summary_rank0.json").figures["held_bytes"]
    trained = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    assert held["weights"] == 4 * sum(weight.numel() for weight in trainer.model.parameters())
    assert held["optimizer"] == 8 * sum(weight.numel() for weight in trained) + 4 * len(trained)


def test_the_text_is_printed(tmp_path, capsys):
    train(tmp_path, Profile(profile=True, profile_start=1, profile_steps=1))
    printed = capsys.readouterr().out
    assert (tmp_path / "profile" / "summary_rank0.md").read_text().strip() in printed
    assert re.search(r"profile of steps 1 to 1, rank 0: \S+trace_rank0\.json\.gz", printed)
    assert "No collective ran." in printed and "| position updates" in printed


def test_a_run_is_the_same_and_nothing_of_it_stays(recorded, tmp_path):
    plain = train(tmp_path)
    _, trainer = recorded
    assert losses(trainer) == losses(plain)
    assert names_of(trainer) == names_of(plain)


def test_blocks_that_are_computed_again_and_tiles(tmp_path):
    """Times still add up where dispatch modes are at work, and forwards are other functions already."""
    memory = Memory(checkpoint_layers="selective", checkpoint_offload=True, mlp_tiles=2)
    trainer = train(tmp_path, Profile(profile=True), memory)
    figures = results.load(tmp_path / "profile" / "summary_rank0.json").figures
    total = sum(time for times in figures["parts"].values() for time in times.values())
    assert total == pytest.approx(figures["window"], rel=1e-2)
    assert figures["parts"]["feed-forward"]["backward"] > 0
    assert ("LlamaMLP", "forward") in names_of(trainer)  # the tiles', still there


def test_a_window_that_the_run_does_not_reach_is_said(tmp_path, capsys):
    train(tmp_path, Profile(profile=True, profile_start=STEPS + 1))
    assert f"recorded no profile: the run ended before step {STEPS + 1}" in capsys.readouterr().out
    assert not (tmp_path / "profile").exists()


def test_a_run_that_ends_within_the_window(tmp_path):
    train(tmp_path, Profile(profile=True, profile_start=STEPS, profile_steps=5))
    assert results.load(tmp_path / "profile" / "summary_rank0.json").figures["steps"] == 1


def test_other_ranks_record_nothing(tmp_path):
    train(tmp_path, Profile(profile=True, profile_ranks=[1]))
    assert not (tmp_path / "profile").exists()


def test_a_disk_that_takes_nothing_costs_the_profile_alone(tmp_path, capsys):
    (tmp_path / "profile").write_text("in the way")
    trainer = train(tmp_path, Profile(profile=True))
    assert "PROFILE NOT STORED" in capsys.readouterr().out
    assert trainer.state.global_step == STEPS


def test_a_summary_can_be_taken_again_from_the_stored_trace(recorded):
    folder, _ = recorded
    again = trace.summarise(trace.read(folder / "profile" / "trace_rank0.json.gz"))
    stored = json.loads((folder / "profile" / "summary_rank0.json").read_text())["figures"]
    assert again.window == stored["window"] and again.parts == stored["parts"]
