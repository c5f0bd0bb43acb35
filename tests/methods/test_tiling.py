"""Tiled feed-forwards: the same gradients, less in memory at a time, as many pieces whatever the sequence's length."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tape_ds.methods.recompute import use_recompute
from tape_ds.methods.tiling import use_tiles
from tests.models.helpers import gradients, largest_difference, tiny_model, tokens

FORMS = [
    ("mha", "rope"),
    ("gqa", "tape"),
    ("gqa", "tape vector"),
    ("mqa", "tape"),
    ("gqa", "tape flattened"),
]


def outcome(model, ids):
    """Loss and every gradient of one step."""
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return {"loss": loss.detach()} | gradients(model)


@pytest.mark.parametrize("tiles", [2, 20])
@pytest.mark.parametrize("heads, encoding", FORMS)
def test_gradients_are_those_of_one_piece(heads, encoding, tiles):
    """Sequences of 13 tokens: no number of tiles divides them, and 20 leave some empty. fp64, so that what remains is a
    mistake and not the order of a sum; the norms, which transformers computes in fp32, put the floor at 1e-6."""
    model, ids = tiny_model(heads, encoding).double().train(), tokens(2, 13)
    expected = outcome(model, ids)
    use_tiles(model, tiles)
    assert largest_difference(outcome(model, ids), expected) < 1e-6


@pytest.mark.parametrize("layers", [1, "selective"])
def test_inside_blocks_that_are_computed_again(layers):
    model, ids = tiny_model("gqa", "tape vector").train(), tokens(2, 13)
    use_tiles(model, 4)
    expected = outcome(model, ids)
    use_recompute(model, layers)
    found = outcome(model, ids)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


class Widest(TorchDispatchMode):
    """Remembers the most tokens that any tensor with ``columns`` in its last dimension had."""

    def __init__(self, columns):
        super().__init__()
        self.columns = columns
        self.tokens = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.ndim > 1 and out.shape[-1] == self.columns:
            self.tokens = max(self.tokens, out.numel() // self.columns)
        return out


@pytest.mark.parametrize("tiles, most", [(4, 10), (7, 6)])
def test_what_is_inside_exists_for_one_piece(tiles, most):
    """``intermediate_size`` columns are nowhere but inside; the largest such tensor, forward and backward, is a tile's
    (a weight has 4 rows of it)."""
    model = tiny_model("gqa", "rope", hidden_size=4, intermediate_size=48).train()
    use_tiles(model, tiles)
    ids = tokens(1, 40)
    with Widest(48) as widest:
        model(ids, labels=ids).loss.backward()
    assert widest.tokens == most


@pytest.mark.parametrize("length", [1, 13])
def test_the_number_of_pieces_does_not_depend_on_the_sequence(length):
    """A rank whose sequences are longer would otherwise gather weights more often than the others, and wait for
    ever."""
    model = tiny_model("gqa", "tape vector").train()
    use_tiles(model, 4)
    calls = []
    for layer in model.model.layers:
        layer.mlp.up_proj.register_forward_hook(lambda *_: calls.append("mlp"))
        if layer.position.gate is not None:
            layer.position.gate.register_forward_hook(lambda *_: calls.append("gate"))
    ids = tokens(1, length)
    model(ids, labels=ids).loss.backward()
    again = 2  # forward, and once more in the backward
    assert (calls.count("mlp"), calls.count("gate")) == (3 * 4 * again, 2 * 4 * again)


def test_a_hook_on_a_weight_hears_of_one_gradient():
    """An engine counts them: DeepSpeed's own tiles have to tell it which is the last."""
    model, ids = tiny_model("gqa", "rope").train(), tokens(1, 13)
    names = list(model.state_dict())
    use_tiles(model, 4)
    assert list(model.state_dict()) == names
    heard = []
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.register_post_accumulate_grad_hook(lambda _: heard.append(1))
    model(ids, labels=ids).loss.backward()
    assert len(heard) == 1


def test_evaluation_is_left_alone():
    model, ids = tiny_model("gqa", "tape vector"), tokens(2, 13)
    expected = model(ids).logits
    use_tiles(model, 4)
    calls = []
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(model(ids).logits, expected) and len(calls) == 1


def test_what_cannot_be_tiled_is_refused():
    with pytest.raises(ValueError, match="1 or more"):
        use_tiles(tiny_model("gqa", "rope"), 0)
    with pytest.raises(ValueError, match="no feed-forward"):
        use_tiles(torch.nn.Linear(2, 2), 2)
