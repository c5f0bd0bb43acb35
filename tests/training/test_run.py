"""What every run has."""

from types import SimpleNamespace

import pytest
import torch

from tape_ds.training import run


def test_weights_are_16_bit_only_under_an_engine():
    """AdamW on bf16 weights loses steps of 2e-5 on a norm's weight of 1 whole; a gradient scaler refuses fp16."""
    half = {"bf16": True, "fp16": False}
    assert run.weights_dtype(SimpleNamespace(deepspeed=None, **half)) == torch.float32
    assert run.weights_dtype(SimpleNamespace(deepspeed={"bf16": {}}, **half)) == torch.bfloat16


@pytest.mark.parametrize(
    ("steps", "epochs", "rows", "samples"), [(5, 3.0, 100, 40), (-1, 2.0, 10, 24), (-1, 0.5, 16, 8), (-1, 1.0, 1, 8)]
)
def test_samples_are_whole_steps(steps, epochs, rows, samples):
    """Steps decide where they are given; else epochs do, rounded up to steps of 8 rows."""
    values = {"max_steps": steps, "num_train_epochs": epochs}
    recipe = SimpleNamespace(trainer_value=values.get, global_batch_size=8)
    assert run.sample_count(recipe, rows) == samples
