"""Numbers of stored results under their published names."""

from dataclasses import replace

import pytest

from tape_ds import results
from tape_ds.installation import ROOT
from tools.experiment import readings
from tools.experiment.published import Quantity


def result(figures, **config):
    return results.Result(
        command=["x"], started="2027-01-01", finished="2027-01-02", config=config, figures=figures
    )


def text(convention):
    return result(
        {
            "perplexity": [
                {
                    "source": "bin:a/pg19.bin",
                    "convention": convention,
                    "length": 8192,
                    "perplexity": 7.5,
                }
            ]
        }
    )


MEANS = {"twice": {"value": 0.25}, "beyond": {"value": 0.0}, "trained": {"value": None}}
HARNESS = {
    "tasks": {
        "mmlu_a": {"metric": "acc", "value": 0.1},
        "arc_easy": {"metric": "acc_norm", "value": 0.75},
    }
    | {
        "tape_scrolls_qasper": {"metric": "f1", "value": 0.125},
        "tape_scrolls_qmsum": {"metric": None, "value": None},
    },
    "groups": {"mmlu_other": {"metric": "acc", "value": 0.5, "tasks": ["mmlu_a"]}},
}

RULER = {
    "cells": [
        {"task": "vt", "length": length, "score": score}
        for length, score in ((12288, 0.5), (16384, 0.25))
    ],
    "lengths": [{"length": 12288, "mean": 0.5}, {"length": 16384, "mean": 0.25}],
}


@pytest.mark.parametrize(
    ("take", "stored", "expected"),
    [
        (readings.perplexity, text("all_tokens"), {Quantity("pg19", "perplexity", 8192): 7.5}),
        (readings.perplexity, text("blocks"), {Quantity("pg19", "perplexity (blocks)", 8192): 7.5}),
        (
            readings.passkeys,
            result({"passkeys": [{"length": 8000, "correct": 19, "trials": 20}]}, protocol="published"),
            {Quantity("passkey", "accuracy", 8000): 95.0},
        ),
        (
            readings.passkeys,
            result({"passkeys": [{"length": 8000, "correct": 1, "trials": 4}]}, protocol="grid"),
            {Quantity("passkey", "accuracy, own prompts", 8000): 25.0},
        ),
        (
            readings.harness,
            result(HARNESS),
            {
                Quantity("arc_easy", "accuracy"): 75.0,
                Quantity("mmlu_other", "accuracy"): 50.0,
                Quantity("qasper", "f1"): 12.5,
            },
        ),
        (
            readings.ruler,
            result(RULER),
            {
                Quantity("vt", "accuracy", 12288): 50.0,
                Quantity("vt", "accuracy", 16384): 25.0,
                Quantity("ruler", "accuracy", 12288): 50.0,
                Quantity("ruler", "accuracy", 16384): 25.0,
                Quantity("ruler", "accuracy 12k to 16k"): 37.5,
            },
        ),
        (
            readings.READERS["retrieval"],
            result(RULER),
            {
                Quantity("vt", "accuracy", 12288): 50.0,
                Quantity("vt", "accuracy", 16384): 25.0,
                Quantity("retrieval", "accuracy", 12288): 50.0,
                Quantity("retrieval", "accuracy", 16384): 25.0,
                Quantity("retrieval", "accuracy 12k to 16k"): 37.5,
            },
        ),
        (
            readings.arithmetic,
            result({"task": "addition", "trained": [20, 20], "means": MEANS}),
            {Quantity("addition_20", "exact_match"): 25.0, Quantity("addition_20", "exact_match beyond"): 0.0},
        ),
    ],
)  # fmt: skip
def test_numbers_are_read_under_the_published_names(take, stored, expected):
    assert take(stored) == {"": expected}


def test_a_run_says_what_it_scored_and_what_it_cost():
    figures = {"parameters": {"all": 1000}, "train_loss": [{"step": 1, "loss": 2.5}]}
    scored = figures | {"perplexity": {"256": {"perplexity": 9.0}}}
    found = readings.trained(result(scored, eval_data=["stdlib"]))[""]
    cost = {
        Quantity("", "train_loss"): 2.5,
        Quantity("", "parameters"): 1000,
        Quantity("", "seconds"): 86400.0,
    }
    assert found == {Quantity("stdlib", "perplexity", 256): 9.0} | cost
    assert readings.trained(result(figures | {"perplexity": {}}, eval_data=[]))[""] == cost, (
        "another command scores"
    )
    asked = figures | {"addressing": [{"length": 72, "kind": "ignore 0.98", "share": 0.5}]}
    found = readings.trained(result(asked, task="flip_flop"))[""]
    assert found == {Quantity("flip_flop", "accuracy ignore 0.98", 72): 50.0} | cost


def test_an_extension_is_read_within_and_past_its_native_length():
    """A stored run of TAPE: its last variant is the run, and the untouched model another row."""
    stored = results.load(ROOT / "docs/results/extend_smollm2_16k/tape.json")
    rows = readings.trained(stored)
    assert set(rows) == {"", "untouched"}
    assert (
        rows[""][Quantity("", "loss_past_native")]
        < rows["untouched"][Quantity("", "loss_past_native")]
    )
    assert rows["untouched"][Quantity("passkey", "accuracy", 2048)] == 100.0
    assert Quantity("", "seconds") not in rows["untouched"]
    found = rows[""]  # against itself without updates: they cost 0.018 nats past 8,192 tokens
    assert found[Quantity("", "loss_by_updates")] == pytest.approx(0.0181, abs=1e-4)
    assert (
        found[Quantity("", "loss_by_updates, typing.py")] == found[Quantity("", "loss_by_updates")]
    )
    assert found[Quantity("", "loss_by_updates, typing.py, standard error")] == pytest.approx(
        0.0045, abs=1e-4
    )


def test_both_halves_of_table_8_are_read_apart():
    layers = {
        "1": {"attention_l1": 0.0893, "positions_percent": 0.03},
        "8": {"attention_l1": 0.1, "positions_percent": None},
    }
    stored = result({"models": [{"name": "RoPE", "mean": {"add_tokens": {"layers": layers}}}]})
    ((name, numbers),) = readings.stability(stored).items()
    first = Quantity("add_tokens", "layer 1")
    assert name == "RoPE" and numbers[first] == pytest.approx(8.93)
    assert numbers[Quantity("add_tokens, positions", "layer 1")] == 0.03 and len(numbers) == 3


@pytest.mark.parametrize(
    ("asked", "metric"),
    [
        ({}, "accuracy"),
        ({"angles": "yarn", "position_updates": "off"}, "accuracy, yarn, updates off"),
    ],
)
def test_another_model_than_the_run_s_own_is_another_figure(tmp_path, asked, metric):
    found = result(
        {"passkeys": [{"length": 8000, "correct": 19, "trials": 20}]}, protocol="published"
    )
    results.save(replace(found, model=asked), tmp_path / "passkey.json")
    assert readings.read(tmp_path / "passkey.json")[0] == {
        "": {Quantity("passkey", metric, 8000): 95.0}
    }


def test_an_evaluation_of_a_checkpoint_is_not_the_runs(tmp_path):
    asked = result(
        {"passkeys": [{"length": 8000, "correct": 19, "trials": 20}]}, protocol="published"
    )
    for folder in (".", "checkpoint-8", "again/checkpoint-8"):
        results.save(asked, tmp_path / "evaluation" / folder / "passkey.json")
    results.save(result({"parameters": {"all": 1000}}), tmp_path / "results" / "run.json")
    found = [path.relative_to(tmp_path) for path, _, _ in readings.of_run(tmp_path)]
    assert [str(path) for path in found] == ["results/run.json", "evaluation/passkey.json"]
