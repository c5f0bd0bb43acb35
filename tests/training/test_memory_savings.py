"""A recipe's memory savings in a model: the same training, said aloud, and an error where one does nothing."""

import pytest
import torch

from tape_ds.config.sections import Memory
from tape_ds.training.memory_savings import ApplyMemorySavings, MemorySavings
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
        (Memory(checkpoint_layers=2), 0),
        (Memory(checkpoint_layers="selective"), 0),
        (Memory(checkpoint_layers="selective_matmuls", checkpoint_offload=True), 0),
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
    assert savings.savings.recompute.blocks == (2 if memory.checkpoint_layers == 2 else 3)


def test_what_was_done_and_what_came_of_it_is_said(tmp_path, capsys):
    train(tmp_path, EVERYTHING, gradient_checkpointing=True)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory: ")]
    state = hidden = 2 * 16 * 32 * 4  # of one block: sequences, tokens, columns, fp32
    assert said == [
        "memory: in 4 tiles: feed-forward (3)",
        "memory: computed again in the backward: 3 blocks, selective",
        f"memory: moved to the host's memory in the first step: {2 * hidden + state // 2:,} bytes a rank",
        "memory: results kept in the first step instead of computed again: 3",
    ]


def test_nothing_is_done_unasked(tmp_path):
    _, savings = train(tmp_path, Memory())
    assert savings.savings.recompute is None and savings.savings.offload is None and savings.savings.tiled == []


def step(model, savings):
    """One training step, and the account of it."""
    ids = tokens(2, 13)
    model.train()(ids, labels=ids).loss.backward()
    return savings.account()


def test_an_offload_that_moves_nothing_is_a_warning():
    """It ended the run of a large model after its first step."""
    model = tiny_model("gqa", "rope", num_hidden_layers=1)
    savings = MemorySavings(model, Memory(checkpoint_offload=True), checkpointing=True, device=CPU)
    (line,) = step(model, savings)
    assert ": 0 bytes a rank; checkpoint_offload saves nothing here" in line


@pytest.mark.parametrize("layers", ["selective", "selective_matmuls"])
def test_a_policy_that_keeps_no_attention(layers):
    """Attention in plain operations is none that could be kept; linear maps, TAPE's two gates among them, still are."""
    model = tiny_model("gqa", "tape", attention_backend="reference")
    savings = MemorySavings(model, Memory(checkpoint_layers=layers), checkpointing=True, device=CPU)
    if layers == "selective_matmuls":
        assert step(model, savings) == ["results kept in the first step instead of computed again: 23"]
        return
    (line,) = step(model, savings)
    assert ": 0; checkpoint_layers: selective is as 1 here" in line and "attention_backend: sdpa" in line


@pytest.mark.parametrize("encoding, moved", [("rope", 2), ("tape", 3)])
def test_the_last_blocks_inputs_stay(encoding, moved):
    """One tensor where no state travels, else two: of three blocks, two blocks' inputs are moved, the first without a
    state."""
    model = tiny_model("mha", encoding)
    savings = MemorySavings(model, Memory(checkpoint_offload=True), checkpointing=True, device=CPU)
    step(model, savings)
    assert savings.offload.moved_bytes == moved * 2 * 13 * 32 * 4
