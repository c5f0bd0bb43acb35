"""A recipe's memory savings in a model: the same training, announced."""

import pytest
import torch

from tape_ds.config.sections import Memory
from tape_ds.methods.memory_savings import MemorySavings
from tape_ds.training.callbacks import ApplyMemorySavings
from tests.models.helpers import tiny_model, tokens
from tests.training.test_trainer import build, losses

CPU = torch.device("cpu")
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
    [
        (Memory(), 0),
        (Memory(checkpoint_layers="selective"), 0),
        (Memory(checkpoint_layers="selective", checkpoint_offload=True), 0),
        (Memory(mlp_tiles=4), 1e-5),
        (EVERYTHING, 1e-5),
    ],
    ids=str,
)
def test_a_training_is_the_same(tmp_path, method, memory, tolerance):
    """To the last bit, but for tiles, whose sums have another order."""
    expected, _ = train(tmp_path / "plain", method=method)
    found, savings = train(tmp_path / "savings", memory, method=method, gradient_checkpointing=True)
    assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    assert savings.savings.recompute.blocks == 3


def test_savings_are_announced(tmp_path, capsys):
    train(tmp_path, EVERYTHING, gradient_checkpointing=True)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory: ")]
    assert said == [
        "memory: in 4 tiles: feed-forward (3)",
        "memory: computed again in the backward: 3 blocks, selective, their inputs in the host's memory",
    ]


def test_nothing_is_done_unasked(tmp_path):
    _, savings = train(tmp_path, Memory())
    assert savings.savings.recompute is None and savings.savings.offload is None and savings.savings.tiled == []


@pytest.mark.parametrize("encoding, moved", [("rope", 2), ("tape", 3)])
def test_the_last_blocks_inputs_stay(encoding, moved):
    """One tensor where no state travels, else two: of three blocks, two blocks' inputs are moved, the first without a
    state."""
    model = tiny_model("mha", encoding)
    savings = MemorySavings(model, Memory(checkpoint_offload=True), checkpointing=True, device=CPU)
    ids = tokens(2, 13)
    model.train()(ids, labels=ids).loss.backward()
    assert savings.offload.moved_bytes == moved * 2 * 13 * 32 * 4


@pytest.mark.parametrize(
    "memory, encoding, backend, told",
    [
        (Memory(checkpoint_offload=True), "rope", "auto", "checkpoint_offload moves nothing"),
        (Memory(checkpoint_layers="selective"), "tape", "reference", "selective is as 1 here"),
        (Memory(checkpoint_layers="selective"), "tape", "sdpa", None),
    ],
)
def test_a_saving_without_effect_is_a_warning(memory, encoding, backend, told):
    model = tiny_model("gqa", encoding, num_hidden_layers=1, attention_backend=backend)
    savings = MemorySavings(model, memory, checkpointing=True, device=CPU)
    ids = tokens(2, 13)
    model.train()(ids, labels=ids).loss.backward()
    lines = savings.without_effect()
    assert (told is None and lines == []) or told in lines[0]
