"""Counted FLOPs against torch's own counter: MFU and the planner stand on these formulas."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tape_ds.model import flops
from tests.model.helpers import ENCODINGS, HEADS, tiny_model, tokens

LENGTH = 64


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("heads", HEADS)
def test_forward_flops_are_those_that_are_executed(heads, encoding):
    """The plain form computes the whole T x S matrix, of which the formula counts the causal half."""
    model = tiny_model(heads, encoding, attention_backend="reference")
    config, rows = model.config, config_rows(model)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens(1, LENGTH))
    uncounted_half = sum(config.num_attention_heads * columns * LENGTH**2 for columns in rows)
    expected = LENGTH * flops.forward_flops_per_token(config, LENGTH) + uncounted_half
    # The counter misses the products of `scale` (no matrix) and sees those with identities that read the weights.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.005)


def config_rows(model):
    """Columns of key and value together in each block's attention."""
    return [16 + (8 if getattr(layer.position, "attend", None) is not None else 0) for layer in model.model.layers]


def test_training_counts_the_backward_by_what_is_trained():
    config = tiny_model().config
    forward = flops.forward_flops_per_token(config, 100)
    assert flops.training_flops_per_token(config, 100, 1.0) == 3 * forward
    assert flops.training_flops_per_token(config, 100, 0.0) == 2 * forward


def test_tape_s_attention_costs_half_as_much_again():
    """Far out, where attention is everything, a value twice as wide makes 1.5 times the work (not 3, as published)."""
    sizes = {"num_hidden_layers": 40}
    tape, rope = (flops.forward_flops_per_token(tiny_model(encoding=e, **sizes).config, 10**7) for e in ("mix", "rope"))
    assert tape / rope == pytest.approx(1 + 0.5 * 39 / 40, rel=1e-3)
