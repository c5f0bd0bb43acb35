"""The run that tests of shared work launch, and what makes two of them alike."""

import json

import pytest
import torch

from tape_ds.checkpoint import trained


def arguments(tiny, output) -> list[str]:
    """Sequences of an odd number of tokens, drawn by PoSE, under ZeRO-3, recomputed; a document of each rank is
    scored."""
    flags = {
        "model": tiny / "model",
        "method": "tape",
        "target_length": 128,
        "eval_length": 128,
        "rope_parameters.original_max_position_embeddings": 64,
        "train_data": f"text:{tiny}/text.txt",
        "eval_data": f"text:{tiny}/held_out.txt",
        "data_cache": tiny / "cache",
        "window": 33,
        "eval_span": 32,
        "passkey_lengths": "[]",
        "max_steps": 4,
        "save_strategy": "no",
        "learning_rate": 0.03,
        "warmup_steps": 0,
        "deepspeed": "zero3",
        "bf16": "false",
        "activation_checkpointing": "true",
        "global_batch_size": 4,
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def losses(output) -> list[float]:
    """Of every logged step."""
    return [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]


def assert_trained_alike(one, other):
    """Losses in fp32 to 1e-5; weights to 2e-3 after four steps of 0.03, as between any two numbers of processes."""
    assert losses(one) == pytest.approx(losses(other), abs=1e-5)
    models = [trained.load_trained(output / "trained") for output in (one, other)]
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0, msg=name)


def assert_scored_alike(one, other):
    """What they scored after training, by position."""
    mine, others = (
        json.loads((output / "results" / "run.json").read_text())["figures"]["loss_by_position"]["tape, trained"]
        for output in (one, other)
    )
    assert mine.keys() == others.keys()
    for name in mine:
        assert mine[name]["counts"] == others[name]["counts"]
        assert mine[name]["nll"] == pytest.approx(others[name]["nll"], rel=1e-5)
