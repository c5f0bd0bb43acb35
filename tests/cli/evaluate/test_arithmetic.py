"""``tape-ds evaluate arithmetic``: from the command line to stored grids and answers, with models whose answers we
know."""

import argparse
import contextlib
import csv
import json

import pytest
import torch

from tape_ds import results
from tape_ds.checkpoint.trained import TrainedRecord, load_trained, save_trained
from tape_ds.cli.evaluate import arithmetic
from tape_ds.data.generated import TASKS, make
from tape_ds.data.generated.arithmetic import ARITHMETIC
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
    return asker(arithmetic, monkeypatch, tmp_path)


def stored(folder):
    return results.load(folder / "arithmetic.json")


def figures(folder):
    return {name: value for name, value in stored(folder).figures.items() if name != "cost"}


def addressed(folder):
    return results.load(folder / "evaluation" / "addressing.json")


def rates(folder):
    return {(each["first"], each["second"]): each["correct"] / each["samples"] for each in figures(folder)["cells"]}


@pytest.mark.parametrize("task", [task.name for task in ARITHMETIC])
def test_an_oracle_has_all_right(ask, tmp_path, task, capsys):
    """It reads the prompts, not the samples, so what stands in them is enough."""
    model = Calculator(task, right(task))
    code, _ = ask(model, "--task", task, "--trained", "2", "--samples", "10")
    assert code == 0
    found = figures(tmp_path)
    assert (found["task"], found["trained"], found["sizes"]) == (task, [2, 2], list(TASKS[task].sizes))
    assert rates(tmp_path) == {(i, j): 1.0 for i in range(1, 5) for j in range(1, 5)}
    assert {name: (each["value"], each["cells"]) for name, each in found["means"].items()} == {
        "whole": (1.0, 16),
        "trained": (1.0, 4),
        "beyond": (1.0, 12),
        "both_beyond": (1.0, 4),
        "twice": (1.0, 16),
    }
    shown = capsys.readouterr().out
    assert "| beyond: either operand longer | 100.0% | 12 |" in shown and "written: " in shown


def test_a_model_without_extrapolation(ask, tmp_path, capsys):
    """Right at trained lengths only: a quarter of the grid, nothing beyond."""

    def short_only(prompts):
        return [
            answer if len(max(prompt[:-1].split("+"), key=len)) <= 2 else "7"
            for prompt, answer in zip(prompts, ADD(prompts), strict=True)
        ]

    ask(Calculator("addition", short_only), *SMALL)
    found = figures(tmp_path)
    assert {name: each["value"] for name, each in found["means"].items()} == {
        "whole": 0.25,
        "trained": 1.0,
        "beyond": 0.0,
        "both_beyond": 0.0,
        "twice": 0.25,
    }
    last = found["cells"][-1]
    assert last == {"first": 4, "second": 4, "samples": 10, "correct": 0}
    assert "| the whole grid | 25.0% | 16 |" in capsys.readouterr().out


def test_an_answer_that_goes_on_is_wrong(ask, tmp_path):
    """Whatever it begins with."""
    ask(Calculator("addition", lambda prompts: [f"{answer}0" for answer in ADD(prompts)]), *SMALL)
    assert figures(tmp_path)["means"]["whole"]["value"] == 0


def test_tokens_that_the_tokenizer_lacks_are_wrong(ask, tmp_path, monkeypatch):
    """A model's embedding may have more rows than there are letters."""
    model = Calculator("addition", ADD)
    monkeypatch.setattr(model, "replies", lambda prompts: [[19]] * len(prompts))
    assert ask(model, *SMALL)[0] == 0
    assert figures(tmp_path)["means"]["whole"]["value"] == 0


def test_what_is_asked_is_held_out_and_follows_from_the_seed(ask, tmp_path):
    model = Calculator("addition", ADD)
    ask(model, *SMALL, "--samples", "5", "--seed", "3", "--batch_size", "5")
    asked = [set(batch) for batch in model.batches]
    task, cells = TASKS["addition"], [(i, j) for i in range(1, 5) for j in range(1, 5)]
    expected = [{"".join(each.words).partition("=")[0] + "=" for each in task.held_out(size, 5, 3)} for size in cells]
    assert sorted(map(sorted, asked)) == sorted(map(sorted, expected))
    for prompt in set().union(*asked):
        operands = tuple(number[::-1] for number in prompt[:-1].split("+"))
        assert task.is_test(operands, tuple(map(len, operands)))


def test_the_batch_size_changes_nothing(ask, tmp_path):
    """A cell is a batch, the longest first, or several."""
    model = Calculator("addition", ADD)
    ask(model, *SMALL)
    assert len(model.batches) == 16
    assert [max(map(len, batch)) for batch in (model.batches[0], model.batches[-1])] == [10, 4]
    narrow = Calculator("addition", ADD)
    ask(narrow, *SMALL, "--batch_size", "4", "--output", str(tmp_path / "narrow"))
    assert figures(tmp_path / "narrow") == figures(tmp_path)
    assert max(map(len, narrow.batches)) < 10


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
    assert len(result.figures["cells"]) == 6 and result.figures["means"]["twice"] == {"value": None, "cells": 0}
    assert result.figures["cost"]["samples"] == sum(each["samples"] for each in result.figures["cells"])


def test_pictures_and_tables_lie_beside_it(ask, tmp_path):
    ask(Calculator("addition", ADD), *SMALL)
    names = ["arithmetic.csv", "arithmetic.json", "arithmetic.md", "arithmetic.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    table = list(csv.DictReader((tmp_path / "arithmetic.csv").open()))
    assert len(table) == 16 and table[4] == {"first": "2", "second": "1", "samples": "10", "correct": "10"}
    assert (tmp_path / "arithmetic.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_evaluation_goes_on(ask, tmp_path):
    """Nothing is asked twice, and the result is that of an undisturbed evaluation."""
    narrow = [*SMALL, "--batch_size", "10"]
    with pytest.raises(KeyboardInterrupt):
        ask(Calculator("addition", ADD, most=9), *narrow)
    assert not (tmp_path / "arithmetic.json").exists()
    _, found = ask(Calculator("addition", ADD), *narrow)
    assert len(found.model.batches) == 16 - 9
    resumed = figures(tmp_path)
    ask(Calculator("addition", ADD), *narrow, "--output", str(tmp_path / "whole"))
    assert json.dumps(resumed) == json.dumps(figures(tmp_path / "whole"))


def test_all_that_is_wrong_is_told_at_once(ask, tmp_path, capsys):
    words = ["--samples", "0", "--batch_size", "-1", "--digits", "1", "2", "3", "--trained", "0", "--seed", "-1"]
    code, found = ask(Calculator("addition", ADD), *words)
    told = capsys.readouterr().err
    assert (code, found.loads) == (2, [])
    for expected in (
        "--samples = 0",
        "--batch_size = -1",
        "--digits = '1 2 3': not one or two lengths",
        "--trained = '0'",
        "--seed = -1",
        "--task = None: a/model has no record of what it was trained on",
    ):
        assert expected in told
    assert "6 problems found" in told and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "facts", "expected"),
    [
        ([], {}, ["--task = None", "--trained = None"]),
        (["--task", "sorting", "--trained", "2"], {}, ["its tokens are not those of sorting"]),
        (SMALL, {"position_limit": 14}, ["--digits (in tokens) = 16", "has positions for 14"]),
    ],
)
def test_refusals(ask, capsys, words, facts, expected):
    code, found = ask(Calculator("addition", ADD), *words, **facts)
    told = capsys.readouterr().err
    assert (code, found.loads) == (2, []) and all(each in told for each in expected)


def test_what_is_made_for_shorter_texts_is_said_of_a_model(ask, tmp_path, capsys):
    """RandPE's positions are spread over texts of a length that training decides."""
    for spread, told in ((15, True), (16, False), (None, False)):
        config = argparse.Namespace(position_options={} if spread is None else {"evaluation_length": spread})
        folder = tmp_path / str(spread)
        assert ask(Calculator("addition", ADD), *SMALL, "--output", str(folder), config=config)[0] == 0
        assert ("spread over texts of 15 tokens" in capsys.readouterr().out) is told
        assert ("grid's longest have 16" in (folder / "arithmetic.md").read_text()) is told


def test_a_task_may_have_a_longest_problem(ask, capsys):
    words = ["--task", "sorting", "--trained", "2", "--digits", "3", "53"]
    assert ask(Calculator("sorting", right("sorting")), *words)[0] == 2
    assert "sorting has at most 52 numbers in the list" in capsys.readouterr().err


@pytest.fixture
def run(tmp_path):
    """A function that makes the folder of a run with a recipe's fields, and a model with random weights."""

    def make_run(task="addition", vocabulary_of="addition", **config):
        torch.manual_seed(0)
        tokenizer = tokenizer_of(TASKS[vocabulary_of])
        model = tiny_model(encoding="tape", vocab_size=len(tokenizer), eos_token_id=3, max_position_embeddings=64)
        names = tuple(name for name, _ in model.named_parameters())
        save_trained(tmp_path / "run" / "trained", model, TrainedRecord(None, "full", names), tokenizer)
        own = results.collect(config={"task": task, **config}).finish({})
        results.save(own, tmp_path / "run" / "results" / "run.json")
        return tmp_path / "run"

    return make_run


@pytest.mark.parametrize(
    ("config", "words", "trained", "digits"),
    [
        ({"max_digits": 2}, [], [2, 2], [4, 4]),
        ({"max_digits": 2, "max_digits_second": None}, ["--digits", "3"], [2, 2], [3, 3]),
        ({"max_digits": 2, "max_digits_second": 1}, [], [2, 1], [4, 2]),
        ({"max_digits": 2, "max_digits_second": None, "test_digits": 3}, [], [2, 2], [3, 3]),
        ({"max_digits": 2, "test_digits": 3}, ["--trained", "1"], [1, 1], [2, 2]),
        ({"max_digits": 2, "max_digits_second": 1}, ["--trained", "1"], [1, 1], [2, 2]),
    ],
)
def test_a_run_says_what_it_was_trained_on(run, config, words, trained, digits):
    folder = run(task="addition", **config)
    assert arithmetic.main([str(folder), "--samples", "1", *words]) == 0
    found = stored(folder / "evaluation")
    assert (found.config["task"], found.config["trained"], found.config["digits"]) == ("addition", trained, digits)


def test_a_run_of_another_task_says_nothing_of_lengths(run, capsys):
    """It has the same letters, and was trained on none of these problems."""
    folder = run(task="addition", max_digits=2)
    assert arithmetic.main([str(folder), "--task", "subtraction"]) == 2
    told = capsys.readouterr().err
    assert "--trained = None" in told and "--task = None" not in told


def test_another_kind_of_run_says_nothing(run, capsys):
    """``task`` is a word that other recipes may use."""
    assert arithmetic.main([str(run(task="chess", max_digits=2))]) == 2
    assert "has no record of what it was trained on" in capsys.readouterr().err


def test_an_encoding_is_used_for_the_tokens_of_a_cell(ask, monkeypatch):
    """``yarn`` then has the angles of training at trained lengths, and at longer ones those of each."""
    used = []
    monkeypatch.setattr(models, "used_at", lambda model, length: used.append(length) or contextlib.nullcontext())
    ask(Calculator("addition", ADD), *SMALL, "--digits", "2", "3")
    assert used == [12, 11, 10, 9, 9, 7], "2x3, 1x3, 2x2, 1x2, 2x1, 1x1"


def test_a_run_of_addressing_says_what_it_is_asked(run, capsys):
    folder = run("flip_flop", "flip_flop", task_options={"ignore": 0.7}, test_lengths=[24, 32])
    assert arithmetic.main([str(folder), "--samples", "20", "--task_options", '{"sparse": 0.9}']) == 0
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
    assert kinds == [(length, kind) for kind in ("", "ignore 0.9", "ignore 0.1") for length in (24, 32)]
    model = load_trained(folder / "trained")
    again = [
        AnswerCount.of(test, judge(model, task.vocabulary, test.task.held_out(test.size, 20, 0))).to_dict()
        for test in task.tests([24, 32])
    ]
    assert found.figures["tests"] == again
    assert "- length 24, ignore 0.9: " in capsys.readouterr().out


def test_tables_lie_beside_it_and_nothing_is_asked_twice(run, capsys):
    folder = run("recall", "recall", task_options={}, test_lengths=[16])
    assert arithmetic.main([str(folder), "--samples", "5"]) == 0
    files = sorted(path.name for path in (folder / "evaluation").iterdir())
    assert files == ["addressing.csv", "addressing.json", "addressing.md"]
    (line,) = csv.DictReader((folder / "evaluation" / "addressing.csv").open())
    assert (line["length"], line["rows"], line["answers"]) == ("16", "5", "40")
    assert arithmetic.main([str(folder), "--samples", "5", "--lengths", "16"]) == 0
    assert "complete already" in capsys.readouterr().out


def test_a_thousand_sequences_are_asked_where_nobody_says(run):
    folder = run("recall", "recall", test_lengths=[16])
    assert arithmetic.main([str(folder)]) == 0
    assert addressed(folder).config["samples"] == 1000


def test_a_length_that_is_given_twice_is_asked_once(run):
    """Two pieces of work had one key, which ended in a traceback."""
    folder = run("recall", "recall")
    assert arithmetic.main([str(folder), "--samples", "5", "--lengths", "32", "16", "32"]) == 0
    assert [each["length"] for each in addressed(folder).figures["tests"]] == [32, 16]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lengths", "15", "256"], ["--lengths = 15", "--lengths = 256", "16 to 128, a multiple of 2"]),
        (["--digits", "4", "--trained", "2"], ["--digits = [4]: recall does not have it", "--trained = [2]"]),
        (["--task_options", '{"key": 3}'], ["task_options.key = 3: not an option of recall", "keys"]),
        (["--task_options", "3"], ["--task_options = 3: not a mapping"]),
        (["--task", "look_back", "--lengths", "32"], ["its tokens are not those of look_back"]),
        (["--task", "look_back"], ["--lengths = None", "has no record of the lengths of its tests"]),
        (["--task", "addition", "--trained", "2", "--lengths", "9"], ["--lengths = [9]: addition does not have it"]),
        (["--samples", "0"], ["--samples = 0"]),
    ],
)
def test_refusals_of_addressing(run, capsys, words, expected):
    folder = run("recall", "recall", test_lengths=[16])
    assert arithmetic.main([str(folder), *words]) == 2
    told = capsys.readouterr().err
    assert all(each in told for each in expected), told
    assert not (folder / "evaluation").exists()
