"""``python -m tools.experiment``: runs, results and pages of an experiment."""

import csv
from pathlib import Path

import pytest

from tape_ds import results
from tests.config import loads
from tools.experiment import __main__ as experiment
from tools.experiment import pages, runs
from tools.experiment.published import Quantity

FILE = """
about: RoPE and TAPE look back
recipe: addressing/look_back
arms: {rope: {position_encoding: rope}, tape: {position_encoding: tape}, nope: {position_encoding: nope}}
primary: accuracy_72
remarks: [It shows little.]
processes: 1
"""


class Machine:
    """Stands for every process that would be started: leaves the result of the run that its arguments describe."""

    def __init__(self):
        self.started = []

    def run_command(self, starting, words, log):
        self.started.append(words)
        log.parent.mkdir(parents=True, exist_ok=True)
        if words[0] != "launch":
            return 0
        recipe = loads.generated(words[2:], starting.processes)
        name, seed = recipe.model.position_encoding, recipe.trainer.seed
        right = {"rope": 0.5, "tape": 0.75}.get(name, 0.0) - 0.01 * seed
        asked = recipe.lengths.task.tests(recipe.lengths.tested)
        tests = [{"length": each.size[0], "kind": each.kind, "share": right} for each in asked]
        figures = {
            "parameters": {"all": 1000},
            "train_loss": [{"step": 1, "loss": 2.5}],
            "addressing": tests,
        }
        begun = results.collect(seed=seed, config=recipe.as_dict())
        results.save(
            begun.finish(figures), Path(recipe.trainer.output_dir) / "results" / "run.json"
        )
        return 1 if name == "nope" else 0


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FILE)
    made = Machine()
    monkeypatch.setattr(
        runs.Starting, "run_command", lambda self, words, log: made.run_command(self, words, log)
    )
    return made


def test_arms_are_compared_over_seeds_and_run_once(machine):
    words = ["mine.yaml", "--arms", "rope", "tape", "--seeds", "0", "1", "2"]
    assert experiment.main(words) == 0
    text = Path("runs/mine/mine.md").read_text()
    assert "tape: better than rope by 25.0 points" in text
    with open("runs/mine/mine.csv") as file:
        table = list(csv.DictReader(file))
    assert [(line["arm"], line["seed"]) for line in table] == [
        (a, s) for s in "012" for a in ("rope", "tape")
    ]
    assert float(table[1]["look_back_accuracy_96"]) == 75.0
    comparison = results.load("runs/mine/mine.json").figures["comparison"]
    assert (comparison["reference"], comparison["primary"]) == ("rope", "look_back_accuracy_72")
    assert len(machine.started) == 6
    assert experiment.main([*words, "3", "--results", "elsewhere"]) == 0
    assert len(machine.started) == 8 and Path("elsewhere/mine.md").is_file()


@pytest.mark.parametrize("mine", ["mine.md", "mine.json"])
def test_a_page_of_a_person_is_not_replaced(machine, mine, capsys):
    Path("own").mkdir()
    (Path("own") / mine).write_text("{}")
    assert experiment.main(["mine.yaml", "--arms", "rope", "--results", "own"]) == 2
    assert f"results = 'own': {mine} in it would be replaced" in capsys.readouterr().err
    assert (Path("own") / mine).read_text() == "{}" and machine.started == []


def test_a_failed_run_is_named_and_the_others_are_compared(machine, capsys):
    assert experiment.main(["mine.yaml", "--", "--max_steps", "5"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "FAILED: nope, see runs/mine/nope/log.txt"
    assert "5" in machine.started[0] and Path("runs/mine/mine.md").is_file()


def test_a_plan_starts_nothing(machine, capsys):
    assert experiment.main(["mine.yaml", "--plan", "--arms", "rope"]) == 0
    assert (
        "python launchers/train_generated.py --recipe addressing/look_back"
        in capsys.readouterr().out
    )
    assert not machine.started and not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["mine.yaml", "--arms", "rpoe"],
        ["mine.yaml", "--reference", "tpae"],
        ["mine.yaml", "--", "--learnin_rate", "1"],
        ["mine.yaml", "--launcher", "no_such_program --x"],
    ],
)
def test_a_refusal_starts_nothing(words, machine):
    assert experiment.main(words) == 2
    assert not machine.started


@pytest.mark.parametrize("code", [0, 1])
def test_figures_and_pictures_of_the_last_commands_are_stored_if_they_succeed(
    machine, monkeypatch, code
):
    text = "label: Table 8\nabout: x\nthen: [python make]\nnames: {a: TAPE}\npictures: ['*.png']\nsetting: a toy\n"
    Path("mine.yaml").write_text(text)

    def make(starting, words, log):
        layers = {"1": {"attention_l1": 0.25, "positions_percent": 2.0}}
        figures = {"models": [{"name": "a", "mean": {"add_tokens": {"layers": layers}}}]}
        results.save(
            results.collect(command=["x.py"]).finish(figures), log.parent / "stability.json"
        )
        (log.parent / "map.png").write_bytes(b"x")
        return code

    monkeypatch.setattr(machine, "run_command", make)
    assert experiment.main(["mine.yaml", "--results", "out"]) == code
    stored = pages.Measured.of(results.load("out/mine_small.json"))
    if code:
        assert not stored.rows and not stored.sources and not stored.files
        return
    assert stored.rows["TAPE"][Quantity("add_tokens", "layer 1")] == 25.0
    assert stored.files == ("out/mine_small_map.png",) and Path("out/mine_small_map.png").is_file()
    assert (stored.experiment, stored.command) == ("mine", "python -m tools.experiment mine")
    assert "| TAPE | 25.00 |" in Path("out/mine_small.md").read_text()


def test_nothing_asked_for_is_an_error(capsys):
    assert experiment.main([]) == 2 and "experiment" in capsys.readouterr().err
    assert experiment.main(["--list"]) == 0 and "table6" in capsys.readouterr().out
