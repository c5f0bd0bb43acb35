"""Blocks that are computed again: the same gradients to the last bit, and less kept by each policy."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tape_ds import ScaledGPTJConfig, ScaledGPTJForCausalLM
from tape_ds.methods.recompute import use_recompute
from tape_ds.models import decoder_configuration
from tape_ds.models.decoder import class_of
from tests.models.helpers import gradients, tiny_model, tokens

POLICIES = [1, "selective"]
SHAPES = [("mha", "rope"), ("gqa", "tape"), ("mqa", "tape scale"), ("gqa", "tape vector"), ("mha", "alibi")]


def outcome(model, ids, **inputs):
    """Loss and every gradient of one step."""
    model.zero_grad()
    torch.manual_seed(0)  # for the encodings that draw
    loss = model(ids, labels=ids, **inputs).loss
    loss.backward()
    return {"loss": loss.detach()} | gradients(model)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("layers", POLICIES)
@pytest.mark.parametrize("heads, encoding", SHAPES)
def test_gradients_are_those_of_a_model_that_remembers_everything(heads, encoding, layers):
    model, ids = tiny_model(heads, encoding).train(), tokens(2, 13)
    expected = outcome(model, ids)
    use_recompute(model, layers)
    assert_equal(outcome(model, ids), expected)


@pytest.mark.parametrize("layers", POLICIES)
def test_packed_rows_with_padding(layers):
    model, ids = tiny_model("gqa", "tape").train(), tokens(2, 13)
    documents = torch.tensor([[0] * 5 + [1] * 6 + [-1] * 2, [-1] * 1 + [0] * 12], dtype=torch.int32)
    expected = outcome(model, ids, document_ids=documents)
    use_recompute(model, layers)
    assert_equal(outcome(model, ids, document_ids=documents), expected)


@pytest.mark.parametrize("layers", [1, "selective"])
def test_another_family_has_blocks_too(layers):
    config = ScaledGPTJConfig(vocab_size=61, n_positions=64, n_embd=32, n_layer=3, n_head=4, rotary_dim=4)
    model, ids = class_of(ScaledGPTJForCausalLM)(decoder_configuration.configure(config)).train(), tokens(2, 13)
    expected = outcome(model, ids)
    recompute = use_recompute(model, layers)
    assert_equal(outcome(model, ids), expected)
    assert recompute.blocks == 3 and recompute.kept == (3 if layers == "selective" else 0)


def test_every_block_is_computed_again():
    model = tiny_model("gqa", "tape")
    assert use_recompute(model, 1).blocks == 3
    assert all(layer.gradient_checkpointing for layer in model.model.layers)


def kept_tensors(model, ids):
    """Bytes that autograd keeps for the backward, each storage once; what a selective context keeps is not among
    them."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        model(ids, labels=ids).loss.backward()
    return sum(storages.values())


def test_less_is_kept_the_more_is_computed_again():
    model, ids = tiny_model("gqa", "tape").train(), tokens(2, 13)
    everything = kept_tensors(model, ids)
    use_recompute(model, 1)
    assert kept_tensors(model, ids) < everything


@pytest.mark.parametrize("layers, of_a_block", [(1, 0), ("selective", 1)])
def test_what_is_kept_is_counted(layers, of_a_block):
    model, ids = tiny_model("mha", "rope").train(), tokens(1, 13)
    recompute = use_recompute(model, layers)
    model(ids, labels=ids).loss.backward()
    assert recompute.kept == 3 * of_a_block


def test_attention_that_is_no_single_operator_is_not_kept():
    model = tiny_model("gqa", "tape", attention_backend="reference").train()
    recompute = use_recompute(model, "selective")
    model(tokens(1, 13), labels=tokens(1, 13)).loss.backward()
    assert recompute.kept == 0


def test_inputs_are_kept_under_the_context_that_is_given():
    """Hidden states of all blocks, and the position state of all but the first, which has none."""
    seen = []
    model, ids = tiny_model("gqa", "tape").train(), tokens(2, 13)

    def pack(x):
        seen.append(tuple(x.shape))
        return x

    use_recompute(model, 1, lambda: saved_tensors_hooks(pack, lambda x: x))
    model(ids, labels=ids).loss.backward()
    config = model.config
    assert seen.count((2, 13, config.hidden_size)) == 3
    assert seen.count((2, config.num_key_value_heads, 13, config.head_dim)) == 2


def test_a_model_without_such_blocks_is_refused():
    with pytest.raises(ValueError, match="no blocks"):
        use_recompute(torch.nn.Linear(2, 2), 1)
