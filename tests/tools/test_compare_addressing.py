"""``tools/compare_addressing.py``: what is run, what is refused, and what is written of it."""

import csv

import pytest

from tape_ds import results
from tape_ds.recipe import arithmetic
from tape_ds.training import comparison
from tools import compare_addressing


def launch(launcher, own, count, log):
    """Stands for the launcher: writes the result of the run that its arguments describe."""
    assert launcher.name == "train_arithmetic.py"
    recipe = arithmetic.load(own, count)
    seed, right = recipe.trainer_value("seed"), {"rope": 0.5, "tape": 0.75}[recipe.model.position_encoding]
    found = [
        {"length": test.length, "kind": test.kind, "share": right - 0.01 * (seed % 3) - test.length / 1000}
        for test in recipe.addressing.tests
    ]
    figures = {"parameters": {"all": 1000}, "train_loss": [{"step": 1, "loss": 2.5}], "addressing": found}
    log.write_text(" ".join(own))
    started = results.collect(seed=seed, config=recipe.as_dict(), processes=count)
    results.save(started.finish(figures), f"{recipe.trainer_value('output_dir')}/results/run.json")
    return 0


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs that take no time; the folder they are in."""
    monkeypatch.setattr(comparison.runs, "launch", launch)
    return tmp_path / "runs"


def compare(runs, *words):
    return compare_addressing.main(["--output", str(runs), *words])


def test_arms_are_compared_at_the_length_that_decides(runs):
    assert compare(runs, "--seeds", "0", "1", "2", "--primary", "accuracy_72") == 0
    summary = results.load(runs / "compare_addressing.json")
    rows = summary.figures["encodings"]
    assert [(row["encoding"], row["seed"]) for row in rows] == [(n, s) for s in (0, 1, 2) for n in ("rope", "tape")]
    assert rows[0]["accuracy"] == pytest.approx({"accuracy_48": 0.452, "accuracy_72": 0.428, "accuracy_96": 0.404})
    page = (runs / "compare_addressing.md").read_text()
    assert "accuracy at length 72" in page and "tape: better than rope by 25.0 points" in page
    with open(runs / "compare_addressing.csv") as file:
        table = list(csv.DictReader(file))
    assert [float(line["accuracy_96"]) for line in table if line["seed"] == "0"] == pytest.approx([0.404, 0.654])


def test_kinds_of_tests_are_figures_of_their_own(runs):
    assert compare(runs, "--recipe", "addressing/flip_flop", "--primary", "accuracy_256_ignore_0.98") == 0
    figures = results.load(runs / "compare_addressing.json").figures["encodings"][0]["accuracy"]
    assert {"accuracy_128", "accuracy_256", "accuracy_256_ignore_0.98", "accuracy_256_ignore_0.1"} <= set(figures)


@pytest.mark.parametrize(
    "words, told",
    [
        (["--recipe", "arithmetic/addition_tiny"], "use tools/compare_arithmetic.py"),
        (["--", "--held_out_samples", "0"], "nothing is asked"),
        (["--primary", "accuracy_73"], "accuracy_72"),
    ],
)
def test_what_cannot_be_compared_is_refused(words, told, runs, capsys):
    assert compare(runs, *words) == 2
    assert told in capsys.readouterr().err
    assert not runs.exists()
