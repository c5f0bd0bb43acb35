"""What comparisons take on the command line, and what of it is refused before anything runs."""

import pytest
import torch

from tape_ds.errors import UserError
from tape_ds.training.comparison import options
from tape_ds.training.comparison.measures import Measure
from tools import compare_encodings


def check(*argv):
    own, passed_on = options.split(argv)
    return compare_encodings.check(compare_encodings.parse(own), passed_on)


def problems(*argv):
    with pytest.raises(UserError) as caught:
        check(*argv)
    return [(problem.field, problem.wrong.split(",")[0]) for problem in caught.value.problems]


def test_arguments_for_every_run_stand_behind_two_dashes():
    assert options.split(["--output", "o", "--", "--seed", "1"]) == (["--output", "o"], ["--seed", "1"])
    assert options.split(["--output", "o"]) == (["--output", "o"], [])


def test_mistakes_are_named_together():
    given = ["--encodings", "rope", "rpoe", "--seeds", "1", "-1", "1", "--jobs", "0", "--processes", "0"]
    assert problems(*given, "--", "--seed", "3") == [
        ("position_encoding", "unknown encoding"),
        ("seed", "decided by this command"),
        ("processes", "too few"),
        ("jobs", "too few"),
        ("seeds", "out of range"),
        ("seeds", "named twice"),
    ]
    assert problems("--encodings", "rope", "tape", "--reference", "rop") == [("reference", "no such arm")]
    assert problems("--encodings", "rope", "--seeds", *map(str, range(21))) == [("seeds", "21 seeds")]


def test_a_seed_behind_the_dashes_is_that_of_all_where_no_seeds_are_given():
    assert [run.seed for run in check("--encodings", "rope", "--", "--seed", "3")] == [3]


def test_every_arm_has_every_seed_and_one_is_repeated():
    given = ["--encodings", "rope", "tape", "--seeds", "0", "1", "--repeat", "--reference", "tape"]
    assert [run.label for run in check(*given)] == [
        *("rope, seed 0", "tape, seed 0", "tape, seed 0 again", "rope, seed 1", "tape, seed 1"),
    ]
    assert [run.folder.name for run in check("--encodings", "rope", "--repeat")] == ["rope", "rope_again"]


def test_arms_of_a_file_set_any_field(tmp_path):
    file = tmp_path / "arms.yaml"
    file.write_text(
        "plain: {position_encoding: rope}\n"
        "fast: {position_encoding: tape, position_options: {rank: 8}, learning_rate: 1.0e-2}\n"
    )
    found = {run.arm: run.recipe for run in check("--arms", str(file), "--", "--learning_rate", "1e-3")}
    assert {arm: recipe.trainer_value("learning_rate") for arm, recipe in found.items()} == {
        "plain": 1e-3,
        "fast": 0.01,
    }
    assert found["fast"].model.position_options == {"rank": 8}
    assert [run.arm for run in check("--arms", str(file), "--encodings", "alibi")] == ["alibi", "plain", "fast"]


def test_mistakes_of_a_file_are_named_with_their_arm(tmp_path):
    file = tmp_path / "arms.yaml"
    file.write_text("a: {position_encoding: rope, learnin_rate: 1}\nb: {position_encoding: tape, eval_lengths: [1]}\n")
    assert problems("--arms", str(file)) == [
        ("learnin_rate", "a: unknown field (command line)"),
        ("eval_lengths", "b: out of range"),
    ]
    file.write_text("a: {position_encoding: rope}\nb: {position_encoding: tape, eval_lengths: [64]}\n")
    assert problems("--arms", str(file)) == [("eval_lengths", "differs between arms that are compared")]
    file.write_text("a: {position_encoding: rope, seed: 3}\n")
    assert problems("--arms", str(file)) == [("seed", "a: decided by this command (arms.yaml line 1)")]


def test_jobs_share_the_processes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    worlds = {jobs: check("--encodings", "rope", "--jobs", jobs)[0].recipe.world_size for jobs in ("1", "2", "4")}
    assert worlds == {"1": 2, "2": 1, "4": 1}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert problems("--encodings", "rope", "--jobs", "2") == [("jobs", "runs at a time would share the GPUs")]


def test_the_figure_that_decides_is_named_beforehand():
    measures = [Measure(name, name, lambda row: None) for name in ("loss", "share")]
    assert options.primary(compare_encodings.parse([]), measures).name == "loss"
    assert options.primary(compare_encodings.parse(["--primary", "share"]), measures).name == "share"
    with pytest.raises(UserError, match="no such figure\n      remedy: one of: loss, share"):
        options.primary(compare_encodings.parse(["--primary", "shar"]), measures)
