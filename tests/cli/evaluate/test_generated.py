"""``tape-ds evaluate generated``: from the command line to stored grids and answers, with models whose answers we
know."""

import contextlib
import csv

import pytest
import torch

from tape_ds import results
from tape_ds.checkpoint.trained import TrainedRecord, load_trained, save_trained
from tape_ds.cli.evaluate import generated
from tape_ds.data.generated import TASKS, make
from tape_ds.data.generated.task import tokenizer_of
from tape_ds.scoring import models
from tape_ds.scoring.exact_match import AnswerCount, judge
from tests.evaluation.calculators import Calculator, right
from tests.evaluation.found_models import asker
from tests.models.helpers import tiny_model

SMALL = ["--task", "addition", "--trained", "2", "--samples", "10"]
ADD = right("addition")


@pytest.fixture
def ask(monkeypatch, tmp_path):
    return asker(generated, monkeypatch, tmp_path)


def stored(folder):
    return results.load(folder / "arithmetic.json")


def figures(folder):
    return {name: value for name, value in stored(folder).figures.items() if name != "cost"}


def addressed(folder):
    return results.load(folder / "evaluation" / "addressing.json")


def rates(folder):
    return {
        (each["first"], each["second"]): each["correct"] / each["samples"]
        for each in figures(folder)["cells"]
    }


@pytest.mark.parametrize("task", ["addition", "sorting"])
def test_an_oracle_has_all_right(ask, tmp_path, task):
    model = Calculator(task, right(task))
    code, _ = ask(model, "--task", task, "--trained", "2", "--samples", "10")
    assert code == 0
    found = figures(tmp_path)
    assert (found["task"], found["trained"], found["sizes"]) == (
        task,
        [2, 2],
        list(TASKS[task].sizes),
    )
    assert rates(tmp_path) == {(i, j): 1.0 for i in range(1, 5) for j in range(1, 5)}
    assert {name: (each["value"], each["cells"]) for name, each in found["means"].items()} == {
        "whole": (1.0, 16),
        "trained": (1.0, 4),
        "beyond": (1.0, 12),
        "both_beyond": (1.0, 4),
        "twice": (1.0, 16),
    }


def test_what_is_asked_is_held_out_and_follows_from_the_seed(ask, tmp_path):
    model = Calculator("addition", ADD)
    ask(model, *SMALL, "--samples", "5", "--seed", "3", "--batch_size", "5")
    asked = [set(batch) for batch in model.batches]
    task, cells = TASKS["addition"], [(i, j) for i in range(1, 5) for j in range(1, 5)]
    expected = [
        {"".join(each.words).partition("=")[0] + "=" for each in task.held_out(size, 5, 3)}
        for size in cells
    ]
    assert sorted(map(sorted, asked)) == sorted(map(sorted, expected))
    for prompt in set().union(*asked):
        operands = tuple(number[::-1] for number in prompt[:-1].split("+"))
        assert task.is_test(operands, tuple(map(len, operands)))


def test_what_is_stored_is_enough_to_repeat_it(ask, tmp_path):
    ask(Calculator("addition", ADD), *SMALL, "--seed", "7", "--digits", "3", "2")
    result = stored(tmp_path)
    assert (result.seed, result.model["sha256"]) == (7, "0" * 64)
    assert result.config == {
        "evaluation": "arithmetic",
        "task": "addition",
        "trained": [2, 2],
        "digits": [3, 2],
        "samples": 10,
        "batch_size": 400,
    }
    assert result.data == {"arithmetic:addition": TASKS["addition"].fingerprint((3, 2))}
    assert len(result.figures["cells"]) == 6 and result.figures["means"]["twice"] == {
        "value": None,
        "cells": 0,
    }
    assert result.figures["cost"]["samples"] == sum(
        each["samples"] for each in result.figures["cells"]
    )
    names = ["arithmetic.csv", "arithmetic.json", "arithmetic.md", "arithmetic.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    table = list(csv.DictReader((tmp_path / "arithmetic.csv").open()))
    assert len(table) == 6 and table[3] == {
        "first": "2",
        "second": "2",
        "samples": "10",
        "correct": "10",
    }


def test_all_problems_are_in_one_message(ask, tmp_path, capsys):
    words = [
        "--samples",
        "0",
        "--batch_size",
        "-1",
        "--digits",
        "1",
        "2",
        "3",
        "--trained",
        "0",
        "--seed",
        "-1",
    ]
    code, found = ask(Calculator("addition", ADD), *words)
    message = capsys.readouterr().err
    assert (code, found.loads) == (2, [])
    for field in ("--samples", "--batch_size", "--digits", "--trained", "--seed", "--task"):
        assert f"{field} = " in message
    assert "6 problems found" in message and list(tmp_path.iterdir()) == []


@pytest.fixture
def run(tmp_path):
    """A function that makes the folder of a run with a recipe's fields, and a model with random weights."""

    def make_run(task="addition", vocabulary_of="addition", **config):
        torch.manual_seed(0)
        tokenizer = tokenizer_of(TASKS[vocabulary_of])
        model = tiny_model(
            encoding="tape", vocab_size=len(tokenizer), eos_token_id=3, max_position_embeddings=64
        )
        names = tuple(name for name, _ in model.named_parameters())
        save_trained(
            tmp_path / "run" / "trained", model, TrainedRecord(None, "full", names), tokenizer
        )
        own = results.collect(config={"task": task, **config}).finish({})
        results.save(own, tmp_path / "run" / "results" / "run.json")
        return tmp_path / "run"

    return make_run


@pytest.mark.parametrize(
    ("config", "words", "trained", "digits"),
    [
        ({"max_digits": 2, "max_digits_second": 1}, [], [2, 1], [4, 2]),
        ({"max_digits": 2, "max_digits_second": None, "test_digits": 3}, [], [2, 2], [3, 3]),
        ({"max_digits": 2, "max_digits_second": 1}, ["--trained", "1"], [1, 1], [2, 2]),
    ],
)
def test_lengths_of_training_come_from_the_run(run, config, words, trained, digits):
    folder = run(task="addition", **config)
    assert generated.main([str(folder), "--samples", "1", *words]) == 0
    found = stored(folder / "evaluation")
    assert (found.config["task"], found.config["trained"], found.config["digits"]) == (
        "addition",
        trained,
        digits,
    )


def test_a_run_of_another_task_gives_no_lengths(run, capsys):
    folder = run(task="addition", max_digits=2)
    assert generated.main([str(folder), "--task", "subtraction"]) == 2
    assert "--trained = None" in capsys.readouterr().err


def test_angles_are_those_of_each_cell_s_length(ask, monkeypatch):
    used = []
    monkeypatch.setattr(
        models, "used_at", lambda model, length: used.append(length) or contextlib.nullcontext()
    )
    ask(Calculator("addition", ADD), *SMALL, "--digits", "2", "3")
    assert used == [12, 11, 10, 9, 9, 7], "2x3, 1x3, 2x2, 1x2, 2x1, 1x1"


def test_addressing_is_scored_by_length_and_kind(run):
    folder = run("flip_flop", "flip_flop", task_options={"ignore": 0.7}, test_lengths=[24, 32])
    assert (
        generated.main([str(folder), "--samples", "20", "--task_options", '{"sparse": 0.9}']) == 0
    )
    found = addressed(folder)
    assert found.config == {
        "evaluation": "addressing",
        "task": "flip_flop",
        "task_options": {"ignore": 0.7, "sparse": 0.9},
        "lengths": [24, 32],
        "samples": 20,
        "batch_size": 400,
    }
    task = make("flip_flop", {"ignore": 0.7, "sparse": 0.9})
    assert found.data == {"addressing:flip_flop": task.fingerprint([24, 32])}
    kinds = [(each["length"], each["kind"]) for each in found.figures["tests"]]
    assert kinds == [
        (length, kind) for kind in ("", "ignore 0.9", "ignore 0.1") for length in (24, 32)
    ]
    model = load_trained(folder / "trained")
    again = [
        AnswerCount.of(
            test, judge(model, task.vocabulary, test.task.held_out(test.size, 20, 0))
        ).to_dict()
        for test in task.tests([24, 32])
    ]
    assert found.figures["tests"] == again


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lengths", "15", "256"], ["--lengths = 15", "--lengths = 256"]),
        (["--task_options", '{"key": 3}'], ["task_options.key = 3"]),
        (["--task", "look_back", "--lengths", "32"], ["its tokens are not those of look_back"]),
        (["--task", "look_back"], ["--lengths = None"]),
        (["--task", "addition", "--trained", "2", "--lengths", "9"], ["--lengths = [9]"]),
    ],
)
def test_refusals_of_addressing(run, capsys, words, expected):
    folder = run("recall", "recall", test_lengths=[16])
    assert generated.main([str(folder), *words]) == 2
    printed = capsys.readouterr().err
    assert all(each in printed for each in expected), printed
    assert not (folder / "evaluation").exists()
