"""Memory of recurrent layers, against layers with storage."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tape_ds.models import decoder, kept_states, recurrent
from tape_ds.planning import shape
from tests.models.tiny_decoders import tiny_config


@pytest.mark.parametrize("family", ["qwen3_5_text", "nemotron_h", "lfm2"])
def test_what_is_kept_is_what_a_layer_keeps(family):
    """Counted here by the data that each tensor of a real forward shows; views share theirs."""
    config = tiny_config(family)
    model = decoder.class_of(type(decoder.on_meta(config)).native)(config)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    for carrier in recurrent.carriers(model).values():
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            carrier(torch.randn(1, kept_states.TOKENS, 64, requires_grad=True))
    real = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    counted = kept_states.bytes_per_token(config, torch.float32)
    assert counted * kept_states.TOKENS == pytest.approx(real, rel=0.02)
    sizes = shape.sizes(config)
    assert (
        sizes.recurrent[1] * config.num_hidden_layers
        == counted
        > sizes.recurrent[0] * config.num_hidden_layers
        > 0
    )
    assert sizes.attending == 1 / config.num_hidden_layers


def test_a_model_without_such_layers_keeps_nothing_for_them():
    assert kept_states.bytes_per_token(tiny_config("olmo2"), torch.float32) == 0
    assert shape.sizes(tiny_config("olmo2")).attending == 1.0
