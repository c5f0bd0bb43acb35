"""``python -m evaluation arithmetic``: from the command line to the stored grid, with models whose answers we know."""

import argparse
import contextlib
import csv
import itertools
import json
import random

import pytest
import torch

from evaluation import arithmetic, models
from tape_ds import results
from tape_ds.checkpoint.trained import TrainedRecord, save_trained
from tape_ds.data.arithmetic import sequences, split, vocabulary
from tape_ds.data.arithmetic.tasks import TASKS
from tape_ds.model import positions
from tape_ds.recipe.arithmetic import load
from tests.evaluation.calculators import Calculator, right
from tests.evaluation.found_models import Found, asker
from tests.model.helpers import tiny_model

SMALL = ["--task", "addition", "--trained", "2", "--samples", "10"]
ADD = right("addition")


@pytest.fixture
def ask(monkeypatch, tmp_path):
    return asker(arithmetic, monkeypatch, tmp_path)


def stored(folder):
    return results.load(folder / "arithmetic.json")


def figures(folder):
    return {name: value for name, value in stored(folder).figures.items() if name != "cost"}


def rates(folder):
    return {(each["first"], each["second"]): each["correct"] / each["samples"] for each in figures(folder)["cells"]}


@pytest.mark.parametrize("task", TASKS)
def test_an_oracle_has_all_right(ask, tmp_path, task, capsys):
    """It reads the prompts, not the samples, so what stands in them is enough."""
    model = Calculator(task, right(task))
    code, _ = ask(model, "--task", task, "--trained", "2", "--samples", "10")
    assert code == 0
    found = figures(tmp_path)
    assert (found["task"], found["trained"], found["sizes"]) == (task, [2, 2], list(TASKS[task].sizes))
    assert rates(tmp_path) == {(i, j): 1.0 for i in range(1, 5) for j in range(1, 5)}
    assert [each["wrong"] for each in found["cells"]] == [[]] * 16
    assert {name: (each["value"], each["cells"]) for name, each in found["means"].items()} == {
        "whole": (1.0, 16),
        "trained": (1.0, 4),
        "beyond": (1.0, 12),
        "both_beyond": (1.0, 4),
        "twice": (1.0, 16),
    }
    shown = capsys.readouterr().out
    assert "| beyond: either operand longer | 100.0% | 12 |" in shown and "written: " in shown


def test_answers_that_are_shuffled_are_right_by_chance_alone(ask, tmp_path):
    """Within a cell, so that every answer is a likely one; what chance gives follows from how often answers repeat."""
    chance = {}

    def shuffled(prompts):
        answers = ADD(prompts)
        given = random.Random(7).sample(answers, len(answers))
        sizes = tuple(len(number) for number in prompts[0][:-1].split("+"))
        chance[sizes] = sum(one == other for one, other in zip(given, answers, strict=True)) / len(answers)
        return given

    ask(Calculator("addition", shuffled), *SMALL, "--samples", "50", "--batch_size", "50")
    assert rates(tmp_path) == chance, "a batch is a cell"
    assert all(rate <= 0.1 for (i, j), rate in chance.items() if i + j > 3)
    assert figures(tmp_path)["means"]["beyond"]["value"] < 0.05


def test_a_model_without_extrapolation(ask, tmp_path, capsys):
    """Right at trained lengths only: a quarter of the grid, nothing beyond; what it said instead is kept, 3 a cell."""

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
    assert (last["first"], last["second"], last["correct"], len(last["wrong"])) == (4, 4, 0, 3)
    assert all(each["reply"] == "7" and [each["answer"]] == ADD([each["prompt"]]) for each in last["wrong"])
    assert "`, right: `" in (tmp_path / "arithmetic.md").read_text()
    assert "| the whole grid | 25.0% | 16 |" in capsys.readouterr().out


def test_an_answer_that_goes_on_is_wrong(ask, tmp_path):
    """Whatever it begins with."""
    ask(Calculator("addition", lambda prompts: [f"{answer}0" for answer in ADD(prompts)]), *SMALL)
    assert figures(tmp_path)["means"]["whole"]["value"] == 0


def test_tokens_that_the_tokenizer_lacks_are_wrong(ask, tmp_path):
    """A model's embedding may have more rows than there are letters."""
    model = Calculator("addition", ADD)
    generate = model.generate

    def padded(ids_BT, **given):
        out_BT = generate(ids_BT, **given)
        out_BT[:, ids_BT.shape[1]] = 31
        return out_BT

    model.generate = padded
    assert ask(model, *SMALL)[0] == 0
    assert figures(tmp_path)["means"]["whole"]["value"] == 0
    assert figures(tmp_path)["cells"][0]["wrong"][0]["reply"].startswith("?")


def test_what_is_asked_is_held_out_and_follows_from_the_seed(ask, tmp_path):
    model = Calculator("addition", ADD)
    ask(model, *SMALL, "--samples", "5", "--seed", "3", "--batch_size", "5")
    asked = [set(batch) for batch in model.batches]
    cells = [(i, j) for i in range(1, 5) for j in range(1, 5)]
    expected = [{each.prompt for each in split.cell(TASKS["addition"], i, j, 5, 3)} for i, j in cells]
    assert sorted(map(sorted, asked)) == sorted(map(sorted, expected))
    for prompt in set().union(*asked):
        assert split.is_test("addition", tuple(number[::-1] for number in prompt[:-1].split("+")))


def test_cells_of_equally_long_prompts_share_a_batch(ask, tmp_path):
    """The longest first; as many cells as there is room for all their samples."""
    model = Calculator("addition", ADD)
    ask(model, *SMALL, "--batch_size", "25")
    lengths = [{len(prompt) for prompt in batch} for batch in model.batches]
    assert [max(each) for each in lengths] == [10, 9, 8, 8, 7, 7, 6, 6, 5, 4]
    assert all(len(each) == 1 for each in lengths), "nothing is padded"
    shared = figures(tmp_path)
    narrow = Calculator("addition", ADD)
    ask(narrow, *SMALL, "--batch_size", "4", "--output", str(tmp_path / "narrow"))
    assert figures(tmp_path / "narrow") == shared
    assert max(map(len, narrow.batches)) == 4 and narrow.cached == {True}


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
        "use_cache": True,
    }
    assert result.data == {"arithmetic:addition": sequences.fingerprint("addition", 3, 2)}
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
        "--task = None: a/model does not say what it was trained on",
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
    """A function that makes the folder of a run whose recipe says what it is given, and a model with random weights."""

    def make(**config):
        torch.manual_seed(0)
        model = tiny_model(encoding="tape", vocab_size=19, eos_token_id=vocabulary.EOS, max_position_embeddings=64)
        names = tuple(name for name, _ in model.named_parameters())
        tokenizer = vocabulary.tokenizer("addition")
        save_trained(tmp_path / "run" / "trained", model, TrainedRecord(None, "full", names), tokenizer)
        results.save(results.collect(config=config).finish({}), tmp_path / "run" / "results" / "run.json")
        return tmp_path / "run"

    return make


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
    assert "does not say what it was trained on" in capsys.readouterr().err


def test_a_real_model_replies_the_same_with_and_without_a_cache(run, tmp_path):
    """Its weights are random and its answers wrong, so it is the wrong answers that are compared."""
    folder = run(task="addition", max_digits=2)
    for name, given in {"with": [], "without": ["--no_cache"]}.items():
        assert arithmetic.main([str(folder), "--samples", "3", *given, "--output", str(tmp_path / name)]) == 0
    assert figures(tmp_path / "with") == figures(tmp_path / "without")
    replies = {each["reply"] for cell in figures(tmp_path / "with")["cells"] for each in cell["wrong"]}
    assert len(replies) > 10


def test_an_encoding_is_used_for_the_tokens_that_there_are(ask, monkeypatch):
    """Those of the longest problem that is asked together with others."""
    used = []
    monkeypatch.setattr(models, "used_at", lambda model, length: used.append(length) or contextlib.nullcontext())
    ask(Calculator("addition", ADD), *SMALL, "--digits", "2", "3")
    assert used == [12, 11, 9, 7], "of 2 and 3 digits, of 1 and 3, of 1 and 2, of 1 and 1"


@pytest.mark.parametrize("batch_size", [10, 40, 1000])
def test_angles_that_follow_from_the_length_are_those_of_the_cell(batch_size):
    """``yarn``: however many are asked together, trained lengths have the angles of training, longer ones their own."""
    recipe = load(["--position_encoding", "yarn"], world_size=1)
    task, config = TASKS["addition"], recipe.checked_config()
    options = argparse.Namespace(digits=(4, 4), samples=10, batch_size=batch_size, seed=0)
    groups = arithmetic.grouped(task, options, arithmetic.scale_of(Found(None, config=config)))
    assert sorted(itertools.chain(*groups)) == [(i, j) for i in range(1, 5) for j in range(1, 5)]
    for group in groups:
        used = positions.config_at(config, max(task.longest(i, j) for i, j in group))
        for i, j in group:
            assert used.rope_parameters == positions.config_at(config, task.longest(i, j)).rope_parameters
    assert positions.config_at(config, task.longest(1, 3)) is not config, "or there is nothing to tell apart"
