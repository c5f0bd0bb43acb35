"""Inputs in the host's memory: the same gradients to the last bit, and every byte of hidden and position state."""

import gc

import pytest
import torch

from tape_ds.methods.memory_savings import InputOffload
from tape_ds.methods.recompute import use_recompute
from tests.models.helpers import gradients, tiny_model, tokens

CPU = torch.device("cpu")
SEQUENCES, LENGTH = 2, 13


def outcome(model, ids):
    """Loss and every gradient of one step."""
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return {"loss": loss.detach()} | gradients(model)


@pytest.mark.parametrize("layers", [1, "selective"])
@pytest.mark.parametrize(
    "heads, encoding", [("mha", "rope"), ("gqa", "tape"), ("mqa", "tape scale")]
)
def test_gradients_are_the_same_to_the_last_bit(heads, encoding, layers):
    model, ids = tiny_model(heads, encoding).train(), tokens(SEQUENCES, LENGTH)
    expected = outcome(model, ids)
    offload = InputOffload(CPU, keep_last=0)
    use_recompute(model, layers, offload)
    for _ in range(2):  # buffers are used again
        found = outcome(model, ids)
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert offload.moved_bytes == offload.restored_bytes > 0


@pytest.mark.parametrize("keep_last", [0, 2])
def test_hidden_and_position_state_of_every_block_are_moved(keep_last):
    """Three blocks: three hidden states; a position state goes into all blocks but the first. The backward begins with
    the last ones, which may stay."""
    model, ids = tiny_model("gqa", "tape").train(), tokens(SEQUENCES, LENGTH)
    hidden = SEQUENCES * LENGTH * model.config.hidden_size * 4
    state = SEQUENCES * LENGTH * model.config.num_key_value_heads * model.config.head_dim * 4
    offload = InputOffload(CPU, keep_last=keep_last)
    use_recompute(model, 1, offload)
    loss = model(ids, labels=ids).loss
    assert (
        offload.held_bytes
        == offload.moved_bytes
        == (2 * hidden + state if keep_last else 3 * hidden + 2 * state)
    )
    loss.backward()
    assert offload.held_bytes == 0


def test_a_forward_without_a_backward_leaves_nothing():
    model, ids = tiny_model("gqa", "tape").train(), tokens(SEQUENCES, LENGTH)
    offload = InputOffload(CPU, keep_last=0)
    use_recompute(model, 1, offload)
    loss = model(ids, labels=ids).loss
    assert offload.held_bytes > 0
    del loss
    gc.collect()
    assert offload.held_bytes == 0


def test_the_copy_is_a_copy():
    """What happens to a block's input between forward and backward does not reach the gradients."""
    model, ids = tiny_model("gqa", "tape").train(), tokens(SEQUENCES, LENGTH)
    expected = outcome(model, ids)
    model.zero_grad()
    use_recompute(model, 1, InputOffload(CPU, keep_last=0))
    inputs = []
    hook = model.model.layers[1].register_forward_pre_hook(lambda _, args: inputs.extend(args))
    loss = model(ids, labels=ids).loss
    hook.remove()
    with torch.no_grad():
        for x in inputs:
            x.fill_(float("nan"))
    loss.backward()
    found = gradients(model)
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.gpu
def test_on_a_gpu_the_device_holds_less_between_forward_and_backward():
    device = torch.device("cuda")
    model, ids = tiny_model("gqa", "tape").train().to(device), tokens(SEQUENCES, 4096).to(device)
    expected = outcome(model, ids)
    held = {}
    for name in ("without", "with"):
        offload = InputOffload(device, keep_last=0)
        use_recompute(model, 1, *([offload] if name == "with" else []))
        model.zero_grad()
        loss = model(ids, labels=ids).loss
        torch.cuda.synchronize()
        held[name] = torch.cuda.memory_allocated()
        loss.backward()
    assert held["without"] - held["with"] >= 0.7 * offload.moved_bytes > 0
    found = gradients(model)
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
