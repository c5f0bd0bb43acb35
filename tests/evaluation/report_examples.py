"""Stored results for tests of the report: made by hand in the layout that the commands write, and saved for real."""

import dataclasses
import math
from pathlib import Path

from tape_ds import results
from tape_ds.scoring import ruler as rulers

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs" / "results" / "extend_smollm2_16k"
LENGTHS = (1024, 2048, 4096, 8192, 16384)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MACHINE = {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "gpus": [], "processes": 2}
MODEL = {
    "address": "runs/demo",
    "kind": "trained",
    "sha256": "0123456789abcdef" * 4,
    "tokenizer": "f" * 64,
}
MODEL |= {"encoding": "tape", "native_length": 16384, "dtype": "float32"}


def result(*, figures, evaluation=None, config=None, data=None, seed=0, model=MODEL, **fields):
    """A finished result with nothing of this machine in it."""
    own = {} if evaluation is None else {"evaluation": evaluation}
    made = results.Result(
        command=["x"],
        started="2026-01-02T03:04:05+00:00",
        seed=seed,
        versions={"torch": "2.13.0"},
        hardware=MACHINE,
        model=model if evaluation else None,
        config={**own, **(config or {})},
        data=data or {},
        figures=figures,
        finished="2026-01-02T03:14:05+00:00",
    )
    return dataclasses.replace(made, **fields)


def run(**config):
    """What a training run stores."""
    own = {
        "span": 2048,
        "starts": [0, 2048, 4096],
        "nll": [2.0, 1.8, 1.6],
        "counts": [2047, 2048, 2048],
    }
    figures = {
        "train_loss": [{"step": at, "loss": loss} for at, loss in enumerate((3.0, 2.5, 2.0), 1)],
        "parameters": {"all": 134_718_327, "trained": 238_455},
        "native_length": 4096,
        "loss_by_position": {"tape, trained": {"typing.py": own}},
    }
    return result(
        config={"model": "smollm2", "max_steps": 3, **config},
        data={"stdlib": "a" * 64},
        figures=figures,
    )


def perplexity(
    scale=1.0,
    source="bin:pg19/test.bin",
    convention="all_tokens",
    print_="b" * 64,
    targets=10**6,
    **fields,
):
    """What the perplexity command stores; ``scale`` makes models differ."""
    rows = [
        {
            "source": source,
            "convention": convention,
            "length": length,
            "stride": 256,
            "nll": math.log(scale * (9.5 - 0.5 * at)),
            "perplexity": scale * (9.5 - 0.5 * at),
            "targets": targets,
            "windows": 100,
        }
        for at, length in enumerate(LENGTHS)
    ]
    figures = {
        "perplexity": rows,
        "loss_by_position": {},
        "documents": {source: 5},
        "cost": {"seconds": 61.0},
    }
    return result(
        evaluation="perplexity",
        figures=figures,
        data={source: print_},
        config={"stride": 256},
        **fields,
    )


def passkey(found=lambda length, depth: 5, trials=5, form="longlora", **fields):
    """What the passkey command stores."""
    cells = [
        {"length": length, "depth": depth, "trials": trials, "correct": found(length, depth)}
        for length in LENGTHS
        for depth in DEPTHS
    ]
    figures = {"form": form, "cells": cells, "passkeys": [], "cost": {"seconds": 4000.0}}
    return result(
        evaluation="passkey", figures=figures, config={"trials": trials, "form": form}, **fields
    )


def harness(value=0.39123, shots=0, samples=4705, **fields):
    """What the harness command stores."""
    entry = {"metric": "acc", "standard_error": 0.0069, "shots": shots, "samples": samples}
    figures = {
        "tasks": {
            "arc_challenge": {
                **entry,
                "metric": "acc_norm",
                "value": value + 0.06,
                "standard_error": 0.0145,
            },
            "arc_easy": {**entry, "value": value + 0.35},
            "mmlu_philosophy": {**entry, "value": value, "samples": 311, "standard_error": 0.028},
        },
        "groups": {"mmlu_humanities": {**entry, "value": value, "tasks": ["mmlu_philosophy"]}},
        "cut": {"requests": 0, "tokens": 0},
        "cost": {"seconds": 600.0},
    }
    return result(evaluation="harness", figures=figures, **fields)


def replies(right, tasks=("niah_multikey_2", "vt"), lengths=(4096, 8192, 16384), samples=5):
    """Replies to RULER's questions; ``right`` returns how many of a length are right."""
    return [
        {
            "task": task,
            "length": length,
            "question": at,
            "tokens": length - 40,
            "score": float(at < right(length)),
        }
        for task in tasks
        for length in lengths
        for at in range(samples)
    ]


def ruler(right=lambda length: 5, samples=5, **fields):
    """What the ruler command stores."""
    asked = replies(right, samples=samples)
    figures = {**rulers.figures(asked, seed=0), "haystack": "package:x/*.md", "not_asked": ["cwe"]}
    figures["cost"] = {"seconds": 60.0}
    return result(evaluation="ruler", figures=figures, config={"samples": samples}, **fields)


def ruler_rows(variant, right, samples=5):
    """What a run stores of RULER for one of its variants."""
    rows = []
    asked = replies(right, samples=samples)
    for task, length in dict.fromkeys((each["task"], each["length"]) for each in asked):
        own = [each for each in asked if (each["task"], each["length"]) == (task, length)]
        total = sum(each["score"] for each in own)
        low, high = rulers.wilson(total, samples)
        counts = {"samples": samples, "score": total / samples, "low": low, "high": high}
        rows.append({"variant": variant, "task": task, "length": length, **counts, "replies": own})
    return rows


def save(folder, *, run_result=None, **evaluations):
    """A run's folder as the commands leave it: ``results/run.json`` and ``evaluation/NAME.json``."""
    if run_result is not None:
        results.save(run_result, folder / "results" / "run.json")
    for name, each in evaluations.items():
        results.save(each, folder / "evaluation" / f"{name}.json")
    return folder
