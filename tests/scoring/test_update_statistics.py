"""What the updates of the position state do, against the same numbers taken by hand from the model's own parts."""

import pytest
import torch

from tape_ds.scoring.inspection import measure_updates as measure
from tests.models.helpers import tiny_model, tokens


def test_nothing_is_trained_yet():
    """No layer has moved the state; the first token's weight is that of attention."""
    model = tiny_model("gqa", "tape")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".position." in name:
                weight.zero_()
    model.train()
    found = measure(model, tokens(1, 20)[0])
    assert model.training
    assert found.deviation == [0.0, 0.0, 0.0] and found.along_own == [None, None, None]
    assert all(0 < weight < 1 for weight in found.first_token)


def test_a_state_that_is_only_rescaled_or_only_turned():
    """W_att takes a share of the token's own state where it attends to itself alone: a text of one repeated place."""
    ids = tokens(1, 12)[0]
    places = torch.zeros(12, dtype=torch.long)  # all states are the same: A e is the state itself
    model = tiny_model("mha", "tape attention only")
    with torch.no_grad():
        for layer in model.model.layers[:-1]:
            layer.position.attend.weight.copy_(0.1 * torch.eye(4))
    found = measure(model, ids, places)
    assert found.deviation == pytest.approx([0.0, 0.1 / 1.1, 0.21 / 1.21], rel=1e-5)
    assert found.along_own == [None, pytest.approx(1), pytest.approx(1)]
    model = tiny_model(
        "mha", "tape unit", position_options={"state_norm": "unit", "feed_forward": False}
    )
    # a rescaled state gets its modulus back
    assert max(measure(model, ids, places).deviation) < 1e-6


def test_the_first_token_is_all_that_a_first_query_sees():
    """Its own query is left out; with two tokens the mean is over the second's."""
    model = tiny_model("gqa", "tape")
    ids = tokens(1, 2)[0]
    seen = []
    model.config.attention_backend = "reference"
    with torch.no_grad():
        out = model(ids[None], output_attentions=True)
    seen = [weights[0, :, 1, 0].mean().item() for weights in out.attentions]
    assert measure(model, ids).first_token == pytest.approx(seen, rel=1e-5)
