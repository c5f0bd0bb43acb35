"""A recipe's memory savings in a model: the same training."""

import pytest
import torch

from tape_ds.config.sections import Memory
from tape_ds.methods.memory_savings import MemorySavings
from tape_ds.training.callbacks import ApplyMemorySavings
from tests.models.helpers import tiny_model, tokens
from tests.training.test_trainer import build, losses

EVERYTHING = Memory(checkpoint_layers="selective", checkpoint_offload=True, mlp_tiles=4)


def train(folder, memory=None, **arguments):
    """Losses of a short training, and the callback."""
    trainer = build(folder, save_strategy="no", **arguments)
    savings = None if memory is None else ApplyMemorySavings(memory)
    if savings is not None:
        trainer.add_callback(savings)
    trainer.train()
    return losses(trainer), savings


@pytest.mark.parametrize("method", ["tape", "lora"])
@pytest.mark.parametrize(
    "memory, tolerance",
    [(Memory(checkpoint_layers="selective", checkpoint_offload=True), 0), (EVERYTHING, 1e-5)],
)
def test_a_training_is_the_same(tmp_path, method, memory, tolerance):
    """To the last bit, but for tiles, whose sums have another order."""
    expected, _ = train(tmp_path / "plain", method=method)
    found, savings = train(tmp_path / "savings", memory, method=method, gradient_checkpointing=True)
    assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    assert savings.savings.recompute.blocks == 3


@pytest.mark.parametrize(
    "memory, backend, warnings",
    [
        (Memory(checkpoint_offload=True), "auto", 1),
        (Memory(checkpoint_layers="selective"), "reference", 1),
        (Memory(checkpoint_layers="selective"), "sdpa", 0),
    ],
)
def test_a_saving_without_effect_is_a_warning(memory, backend, warnings):
    model, ids = tiny_model(num_hidden_layers=1, attention_backend=backend), tokens(2, 13)
    savings = MemorySavings(model, memory, checkpointing=True, device=torch.device("cpu"))
    model.train()(ids, labels=ids).loss.backward()
    assert len(savings.without_effect()) == warnings
