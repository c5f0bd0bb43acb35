"""No positions: what scores are scaled by beyond the length of training, and where they are not."""

import math

import pytest
import torch

from tape_ds import TapeForCausalLM, encodings
from tape_ds.encodings import registry
from tape_ds.models.changed_positions import evaluated_at
from tests.models.helpers import randomised, tiny_config, tokens

SCALED = {"score_scale": 0.412, "trained_length": 16}


def model_of(**options):
    """A model without positions, and with these options."""
    torch.manual_seed(3)
    return randomised(
        TapeForCausalLM(tiny_config(encoding="nope", position_options=options))
    ).eval()


@torch.no_grad()
def logits(model, ids):
    return model(ids).logits


@pytest.mark.parametrize("length", [17, 160])
def test_scores_are_multiplied_by_the_published_factor(length):
    """beta = 1 + c ln(length / trained_length): as if every query's projection were so much larger."""
    model, ids = model_of(**SCALED).double(), tokens(2, 24)
    larger = model_of(**SCALED).double()
    with torch.no_grad():
        for layer in larger.model.layers:
            layer.self_attn.q_proj.weight.mul_(1 + 0.412 * math.log(length / 16))
    before = logits(model, ids)
    with evaluated_at(model, length):
        inside = logits(model, ids)
    torch.testing.assert_close(inside, logits(larger, ids), rtol=0, atol=1e-5)  # norms are fp32
    assert (inside - before).abs().max() > 1e-3
    assert torch.equal(logits(model, ids), before)


@pytest.mark.parametrize("length", [1, 16])
def test_nothing_changes_up_to_the_trained_length(length):
    model, ids = model_of(**SCALED), tokens(2, length)
    assert encodings.config_at(model.config, length) is model.config
    with evaluated_at(model, length):
        assert torch.equal(logits(model, ids), logits(model_of(), ids))


def test_the_trained_length_is_by_default_the_model_s_own():
    config = tiny_config(
        encoding="nope", position_options={"score_scale": 0.1}, max_position_embeddings=64
    )
    assert encodings.config_at(config, 64) is config
    used = encodings.config_at(config, 128)
    assert used.position_options == {"score_scale": 0.1, "text_length": 128}
    assert registry.build_layer(used, 0).factor == pytest.approx(1 + 0.1 * math.log(2))


def test_a_factor_for_longer_texts_stays():
    """One scale for the whole model, as published: texts shorter than it was chosen for do not change it."""
    config = tiny_config(encoding="nope", position_options=SCALED | {"text_length": 64})
    assert encodings.config_at(config, 32) is config
    assert encodings.config_at(config, 65).position_options["text_length"] == 65
