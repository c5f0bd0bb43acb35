"""The transcription computes what our model computes, or its times would say nothing."""

import pytest
import torch

from benchmarks.reference_formulation import ATTENTIONS, Transcription
from tests.model.helpers import gradients, largest_difference, tiny_config, tiny_model, tokens


def pair(attention):
    ours = tiny_model("mha", position_options={"rank": 5})
    transcription = Transcription(ours.config, attention)
    transcription.load_state_dict(ours.state_dict())
    return ours, transcription


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_logits_loss_and_every_gradient_are_ours(attention):
    ours, transcription = pair(attention)
    ids = tokens(2, 23)
    mine, theirs = (model(input_ids=ids, labels=ids, use_cache=False) for model in (ours, transcription))
    torch.testing.assert_close(theirs.logits, mine.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(theirs.loss, mine.loss, rtol=1e-5, atol=0)
    mine.loss.backward()
    theirs.loss.backward()
    assert largest_difference(gradients(transcription), gradients(ours)) < 1e-4


def test_the_updates_are_part_of_the_comparison():
    """With the updates at zero everything would agree, whatever the transcription makes of them."""
    ours, transcription = pair("three eager")
    ids = tokens(1, 23)
    with torch.no_grad():
        before = transcription(ids).logits
        for name in ("attend", "contract"):
            weight = getattr(transcription.model.layers[0].position, name).weight
            kept = weight.clone()
            weight.zero_()
            assert (transcription(ids).logits - before).abs().max() > 1e-3
            weight.copy_(kept)
        torch.testing.assert_close(ours(ids).logits, before, rtol=0, atol=1e-4)


def test_the_last_layer_has_no_update():
    _, transcription = pair("one eager")
    assert [layer.position is None for layer in transcription.model.layers] == [False, False, True]


def test_grouped_queries_and_unknown_attentions_are_refused():
    with pytest.raises(ValueError, match="no grouped queries"):
        Transcription(tiny_config("gqa"), "one eager")
    with pytest.raises(ValueError, match="three eager, one eager, three sdpa"):
        Transcription(tiny_config("mha"), "flash")
