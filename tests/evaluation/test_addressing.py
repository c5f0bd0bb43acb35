"""``python -m evaluation arithmetic`` for tasks of addressing: from the command line to the stored answers."""

import csv

import pytest
import torch

from evaluation import arithmetic
from tape_ds import results
from tape_ds.checkpoint.trained import TrainedRecord, load_trained, save_trained
from tape_ds.data.addressing import lengths, sequences
from tape_ds.data.addressing.tasks import TASKS, make
from tape_ds.data.arithmetic import vocabulary
from tape_ds.scoring import addressing
from tests.model.helpers import tiny_model


@pytest.fixture
def run(tmp_path):
    """A function that makes the folder of a run whose recipe says what it is given, and a model with random weights."""

    def make_run(task="recall", **config):
        torch.manual_seed(0)
        words = TASKS[task].vocabulary
        model = tiny_model(encoding="tape", vocab_size=len(words), max_position_embeddings=64)
        names = tuple(name for name, _ in model.named_parameters())
        save_trained(
            tmp_path / "run" / "trained", model, TrainedRecord(None, "full", names), vocabulary.of_words(words)
        )
        own = results.collect(config={"task": task, **config}).finish({})
        results.save(own, tmp_path / "run" / "results" / "run.json")
        return tmp_path / "run"

    return make_run


def stored(folder):
    return results.load(folder / "evaluation" / "addressing.json")


def test_a_run_says_what_it_is_asked(run, capsys):
    folder = run("flip_flop", task_options={"ignore": 0.7}, test_lengths=[24, 32])
    assert arithmetic.main([str(folder), "--samples", "20", "--task_options", '{"sparse": 0.9}']) == 0
    found = stored(folder)
    assert found.config == {
        "evaluation": "addressing",
        "task": "flip_flop",
        "task_options": {"ignore": 0.7, "sparse": 0.9},
        "lengths": [24, 32],
        "samples": 20,
        "batch_size": 400,
    }
    task = make("flip_flop", {"ignore": 0.7, "sparse": 0.9})
    assert found.data == {"addressing:flip_flop": sequences.fingerprint(task, [24, 32])}
    kinds = [(each["length"], each["kind"]) for each in found.figures["tests"]]
    assert kinds == [(length, kind) for kind in ("", "ignore 0.9", "ignore 0.1") for length in (24, 32)]
    model = load_trained(folder / "trained")
    again = [addressing.ask(model, test, 20, 0).to_dict() for test in lengths.tests(task, [24, 32])]
    assert found.figures["tests"] == again
    assert "- length 24, ignore 0.9: " in capsys.readouterr().out


def test_tables_lie_beside_it_and_nothing_is_asked_twice(run, capsys):
    folder = run(task_options={}, test_lengths=[16])
    assert arithmetic.main([str(folder), "--samples", "5"]) == 0
    files = sorted(path.name for path in (folder / "evaluation").iterdir())
    assert files == ["addressing.csv", "addressing.json", "addressing.md"]
    (line,) = csv.DictReader((folder / "evaluation" / "addressing.csv").open())
    assert (line["length"], line["rows"], line["answers"]) == ("16", "5", "40")
    assert arithmetic.main([str(folder), "--samples", "5", "--lengths", "16"]) == 0
    assert "complete already" in capsys.readouterr().out


def test_a_thousand_sequences_are_asked_where_nobody_says(run):
    folder = run(test_lengths=[16])
    assert arithmetic.main([str(folder)]) == 0
    assert stored(folder).config["samples"] == 1000


def test_a_length_that_is_given_twice_is_asked_once(run):
    """Two pieces of work had one key, which ended in a traceback."""
    folder = run()
    assert arithmetic.main([str(folder), "--samples", "5", "--lengths", "32", "16", "32"]) == 0
    assert [each["length"] for each in stored(folder).figures["tests"]] == [32, 16]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lengths", "15", "256"], ["--lengths = 15", "--lengths = 256", "16 to 128, a multiple of 2"]),
        (["--digits", "4", "--trained", "2"], ["--digits = [4]: recall has nothing of that", "--trained = [2]"]),
        (["--task_options", '{"key": 3}'], ["task_options.key = 3: not an option of recall", "keys"]),
        (["--task_options", "3"], ["--task_options = 3: not a mapping"]),
        (["--task", "look_back", "--lengths", "32"], ["its tokens are not those of look_back"]),
        (["--task", "look_back"], ["--lengths = None", "does not say how long its tests are"]),
        (["--task", "addition", "--trained", "2", "--lengths", "9"], ["--lengths = [9]: addition has nothing of that"]),
        (["--samples", "0"], ["--samples = 0"]),
    ],
)
def test_refusals(run, capsys, words, expected):
    folder = run(test_lengths=[16])
    assert arithmetic.main([str(folder), *words]) == 2
    told = capsys.readouterr().err
    assert all(each in told for each in expected), told
    assert not (folder / "evaluation").exists()
