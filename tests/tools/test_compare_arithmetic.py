"""``tools/compare_arithmetic.py``: what is run and asked, what is not again, and what is written of it."""

import csv

import pytest

from tape_ds import results
from tape_ds.recipe import arithmetic
from tape_ds.scoring.arithmetic import Cell, means
from tape_ds.training import comparison
from tools import compare_arithmetic

REACH = {"rope": 2, "tape": 3, "fire": 4}
"""Longest operands that stand-ins for trained models add up."""


def launch(launcher, own, count, log):
    """Stands for the launcher: writes the result of the run that its arguments describe, or fails for ``nope``."""
    assert launcher.name == "train_arithmetic.py"
    recipe = arithmetic.load(own, count)
    log.write_text(" ".join(own))
    if recipe.model.position_encoding == "nope":
        return 1
    figures = {"parameters": {"all": 1000}, "train_loss": [{"step": 1, "loss": 0.25}]}
    started = results.collect(seed=recipe.trainer_value("seed"), config=recipe.as_dict(), processes=count)
    results.save(started.finish(figures), recipe.trainer_value("output_dir") + "/results/run.json")
    return 0


def ask(name, words, count, log):
    """Stands for ``python -m evaluation``: a grid as far as the encoding reaches, or a failure for ``alibi``."""
    assert (name, words[0]) == ("evaluation", "arithmetic")
    folder, log_text = words[1], " ".join(words)
    log.write_text(log_text)
    if folder.endswith("alibi"):
        return 3
    given = {name: words[words.index(f"--{name}") + 1 :] for name in ("digits", "samples", "batch_size")}
    first, second = map(int, given["digits"][:2])
    samples = int(given["samples"][0])
    reach = REACH[folder.rsplit("/", 1)[-1].split("_")[0]]
    cells = [
        Cell(i, j, samples, samples * (max(i, j) <= reach)) for i in range(1, first + 1) for j in range(1, second + 1)
    ]
    figures = {
        "task": "addition",
        "sizes": ["digits of the first", "digits of the second"],
        "trained": [2, 2],
        "means": {part: vars(mean) for part, mean in means(cells, (2, 2)).items()},
        "cells": [vars(cell) | {"wrong": []} for cell in cells],
        "cost": {"seconds": 1.0},
    }
    config = {"digits": [first, second], "samples": samples, "batch_size": int(given["batch_size"][0])}
    begun = results.collect(seed=0, config={**config, "use_cache": True})
    results.save(begun.finish(figures), f"{folder}/evaluation/arithmetic.json")
    return 0


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs that take no time; the folder they are in."""
    monkeypatch.setattr(comparison.runs, "launch", launch)
    monkeypatch.setattr(comparison.runs, "launch_module", ask)
    return tmp_path / "runs"


def compare(runs, *names, grid=(), behind=()):
    recipe = ["--recipe", "addition_tiny", "--output", str(runs), "--processes", "2"]
    behind = ["--", "--max_digits", "2", *behind]
    return compare_arithmetic.main(["--encodings", *names, *recipe, *grid, *behind])


def test_a_run_too_short_to_have_logged_a_loss_is_compared(runs, monkeypatch):
    def unlogged(launcher, own, count, log):
        code, file = launch(launcher, own, count, log), runs / "rope" / "results" / "run.json"
        result = results.load(file)
        results.save(results.Result(**vars(result) | {"figures": result.figures | {"train_loss": []}}), file)
        return code

    monkeypatch.setattr(comparison.runs, "launch", unlogged)
    assert compare(runs, "rope") == 0
    assert results.load(runs / "compare_arithmetic.json").figures["encodings"][0]["train_loss"] is None
    assert "| rope | 1,000 | N/A | **100.0%** |" in (runs / "compare_arithmetic.md").read_text()


def test_four_encodings_of_the_small_experiment_are_compared_by_default():
    planned = compare_arithmetic.check(compare_arithmetic.parse([]), [])
    assert [run.label for run in planned] == ["rope", "fire", "nope", "tape"]
    recipes = [run.recipe for run in planned]
    assert {(each.data.task, each.data.max_digits) for each in recipes} == {("addition", 6)}
    assert {each.trainer_value("seed") for each in recipes} == {42}


def test_the_table_the_cells_and_the_figure_are_written(runs):
    assert compare(runs, "rope", "tape", 'fire{"width": 8}', grid=["--samples", "10"]) == 0
    figures = results.load(runs / "compare_arithmetic.json").figures
    assert (figures["task"], figures["trained"], figures["digits"], figures["samples"]) == (
        "addition",
        [2, 2],
        [4, 4],
        10,
    )
    assert [row["encoding"] for row in figures["encodings"]] == ["rope", "tape", "fire width=8"]
    assert [row["means"]["beyond"]["value"] for row in figures["encodings"]] == [0, 5 / 12, 1]
    text = (runs / "compare_arithmetic.md").read_text()
    assert "| rope | 1,000 | 0.2500 | **100.0%** | 0.0% | 0.0% | 25.0% |" in text
    assert "| tape | 1,000 | 0.2500 | **100.0%** | 41.7% | 25.0% | 56.2% |" in text
    assert "| fire width=8 | 1,000 | 0.2500 | **100.0%** | **100.0%** | **100.0%** | **100.0%** |" in text
    with open(runs / "compare_arithmetic.csv") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 3 * 16 and cells[16 + 2 * 4 + 2] == {
        "encoding": "tape",
        "seed": "42",
        "again": "False",
        "first": "3",
        "second": "3",
        "samples": "10",
        "correct": "10",
    }
    assert (runs / "compare_arithmetic.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_complete_is_not_repeated(runs, capsys):
    compare(runs, "rope")
    capsys.readouterr()
    compare(runs, "rope", "tape")
    shown = capsys.readouterr().out
    assert "rope: complete, not repeated" in shown and "rope: its grid is complete, not repeated" in shown
    assert "tape: training" in shown and "tape: asking" in shown


@pytest.mark.parametrize("grid", [["--digits", "3"], ["--samples", "7"], ["--batch_size", "9"]])
def test_another_grid_is_asked_of_the_same_runs(runs, capsys, grid):
    compare(runs, "rope")
    capsys.readouterr()
    assert compare(runs, "rope", grid=grid) == 0
    shown = capsys.readouterr().out
    assert "rope: complete, not repeated" in shown and "rope: asking" in shown
    assert "--overwrite" in (runs / "rope" / "evaluation.txt").read_text()


def test_a_grid_is_of_the_run_that_lies_there(runs, capsys):
    """Of a run of another recipe, everything is set aside; and a grid older than its run is asked again."""
    compare(runs, "rope")
    compare(runs, "rope", behind=["--max_steps", "7"])
    assert (runs / "rope.1" / "evaluation" / "arithmetic.json").is_file()
    file = runs / "rope" / "results" / "run.json"
    later = results.load(file)
    results.save(results.Result(**vars(later) | {"finished": "2999-01-01T00:00:00+00:00"}), file)
    capsys.readouterr()
    assert compare(runs, "rope", behind=["--max_steps", "7"]) == 1, "nor is what was asked then of it"
    assert "rope: asking" in capsys.readouterr().out


def test_seeds_are_compared_in_pairs(runs, capsys):
    """Every arm, seed by seed; what is beyond the trained lengths decides; the repeated run shows no noise here."""
    given = ["--seeds", "0", "1", "--samples", "10", "--jobs", "2"]
    assert compare(runs, "rope", "tape", grid=[*given, "--repeat"]) == 0
    assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == [
        *("rope_seed_0", "rope_seed_0_again", "rope_seed_1", "tape_seed_0", "tape_seed_1"),
    ]
    assert "--seed 1" in (runs / "tape_seed_1" / "log.txt").read_text()
    whole = results.load(runs / "compare_arithmetic.json")
    found = whole.figures["comparison"]
    assert (whole.seed, found["seeds"], found["primary"], found["reference"]) == (None, [0, 1], "beyond", "rope")
    assert found["arms"]["tape"]["beyond"]["values"] == dict.fromkeys("01", 5 / 12)
    assert found["claims"][0]["differences"] == dict.fromkeys("01", 5 / 12) and found["claims"][0]["p"] == 0.5
    assert set(found["repeated"]["figures"]["beyond"]) == {0.0}
    text = (runs / "compare_arithmetic.md").read_text()
    assert "| tape | 2 | 1,000 | 0.2500 ± 0.0000 | **100.0 ± 0.0%** | **41.7 ± 0.0%** |" in text
    assert "- tape: better than rope by 41.7 points (95 %: 41.7 to 41.7, n = 2), but" in text
    capsys.readouterr()
    compare(runs, "rope", "tape", grid=[*given, "--primary", "whole", "--reference", "tape"])
    shown = capsys.readouterr().out
    assert shown.count("complete, not repeated") == 8 and "- rope: worse than tape by 31.2 points" in shown


def test_what_fails_is_named_with_its_log_and_the_others_are_compared(runs, capsys):
    assert compare(runs, "nope", "alibi", "rope") == 1
    captured = capsys.readouterr()
    assert f"FAILED: nope, see {runs}/nope/log.txt" in captured.err
    assert f"FAILED: alibi, see {runs}/alibi/evaluation.txt" in captured.err
    assert "| rope |" in captured.out and "| nope |" not in captured.out


@pytest.mark.parametrize(
    "names, grid, behind, words",
    [
        (["rpoe"], ["--samples", "0", "--digits", "0"], [], ["did you mean 'rope'", "samples = 0", "digits = '0'"]),
        (["rope"], ["--batch_size", "0", "--digits", "1", "2", "3"], [], ["batch_size = 0", "not one or two lengths"]),
        (["rope"], [], ["--recipe=y", "--position_options={}"], ["recipe", "decided by this command"]),
        (["rope"], [], ["--learnin_rate", "1"], ["did you mean 'learning_rate'"]),
        (["rope", "randpe"], ["--digits", "9"], [], ["randpe: its positions", "add -- --test_digits 9"]),
        (["rope"], ["--digits", "4", "60"], ["--task", "sorting"], ["sorting has at most 52 numbers"]),
    ],
)
def test_mistakes_are_named_before_anything_runs(names, grid, behind, words, runs, capsys):
    assert compare(runs, *names, grid=grid, behind=behind) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)
    assert not runs.exists()


def test_runs_differ_in_nothing_but_the_encoding():
    """Same seed, rows, sizes and steps: only then is it a comparison."""
    given = compare_arithmetic.parse(["--encodings", "rope", 'rope{"abacus": true}', "tape", "randpe"])
    recipes = [run.recipe.as_dict() for run in compare_arithmetic.check(given, [])]
    own = {"position_encoding", "position_options", "output_dir"}
    shared = [{name: value for name, value in recipe.items() if name not in own} for recipe in recipes]
    assert len(recipes) == 4 and all(each == shared[0] for each in shared)


def test_a_task_without_operands_is_refused(capsys, tmp_path):
    words = ["--encodings", "rope", "--recipe", "addressing/look_back", "--processes", "1"]
    words += ["--output", str(tmp_path / "runs")]
    assert compare_arithmetic.main(words) == 2
    assert "look_back has no operands" in capsys.readouterr().err and not (tmp_path / "runs").exists()
