"""Counted FLOPs against torch's own counter: MFU and the planner stand on these formulas."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tape_ds.models import flops
from tests.models.helpers import MODELS, tiny_model, tokens

LENGTH = 64


@pytest.mark.parametrize("heads, encoding", MODELS)
def test_multiply_adds_are_those_that_are_executed(heads, encoding):
    """The plain form computes the whole T x S matrix, which is the convention ``causal=False``."""
    model = tiny_model(heads, encoding, attention_backend="reference")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens(1, LENGTH))
    expected = 2 * flops.multiply_adds(model.config, LENGTH, causal=False)
    layer = model.model.layers[0].position
    # its first layer has one input: no matrix, and not seen by the counter
    if hasattr(layer, "network"):
        expected -= 2 * LENGTH**2 * layer.network.weight_in.numel() * len(model.model.layers)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_training_counts_the_backward_by_what_is_trained():
    config = tiny_model().config
    forward = 2 * flops.multiply_adds(config, 100) / 100
    assert flops.training_flops_per_token(config, 100, 1.0) == 3 * forward
    assert flops.training_flops_per_token(config, 100, 0.0) == 2 * forward
