"""``cope``: what is counted, what a new model begins with, and which attention may compute it."""

import math

import pytest
import torch

from tape_ds import TapeForCausalLM
from tests.models.helpers import rounding, tiny_config, tiny_model, tokens

K = 8


def added(scores_TS, e_PK, q_TK=None, allowed_TS=None):
    """The bias of one head [T, S] where these are the scores and e."""
    layer = (
        tiny_model(encoding="cope", position_options={"positions": len(e_PK)})
        .model.layers[0]
        .position
    )
    with torch.no_grad():
        layer.places.weight.copy_(e_PK)
    q_TK = torch.ones(len(scores_TS), K) if q_TK is None else q_TK
    allowed_TS = torch.ones_like(scores_TS).tril().bool() if allowed_TS is None else allowed_TS
    bias = layer.score_bias(None, None)
    return bias.block(q_TK[None, None], allowed_TS[None, None], scores_TS[None, None])[0, 0]


def test_with_every_gate_open_places_are_distances():
    """A query counts itself first; behind the last embedding all places are one."""
    e_PK, q_TK = torch.randn(6, K), torch.randn(9, K)
    found = added(torch.full((9, 9), 60.0), e_PK, q_TK)
    for n in range(9):
        for m in range(n + 1):
            expected = q_TK[n] @ e_PK[min(n - m + 1, 5)] * K**-0.5
            torch.testing.assert_close(found[n, m], expected, rtol=0, atol=1e-5)


def test_a_shut_gate_counts_nothing_and_half_a_gate_lies_between():
    e_PK = torch.arange(6.0)[:, None].expand(6, K)  # so that the bias is the place, in some unit
    scores = torch.tensor([[60.0, -60.0, 0.0, -60.0, 60.0]]).expand(5, 5)
    places = added(scores, e_PK)[4] * K**-0.5
    torch.testing.assert_close(places, torch.tensor([2.5, 1.5, 1.5, 1.0, 1.0]))


def test_keys_that_are_not_seen_are_not_counted():
    e_PK = torch.arange(6.0)[:, None].expand(6, K)
    seen = torch.tensor([[True, False, True, False]])
    places = added(torch.full((1, 4), 60.0), e_PK, allowed_TS=seen)[0] * K**-0.5
    torch.testing.assert_close(places, torch.tensor([2.0, 1.0, 1.0, 0.0]))


def test_a_new_model_begins_without_positions():
    torch.manual_seed(0)
    new = TapeForCausalLM(tiny_config(encoding="cope")).eval()
    plain = TapeForCausalLM(tiny_config(encoding="nope")).eval()
    plain.load_state_dict(
        {name: value for name, value in new.state_dict().items() if ".position." not in name}
    )
    ids = tokens(2, 12)
    torch.testing.assert_close(
        new(ids).logits, plain(ids).logits, rtol=0, atol=rounding(plain, ids)
    )


def test_what_is_counted_and_added_follows_a_query_that_is_scaled_up():
    """``log_scale``: as if the projection had given the query of the last token so."""
    sizes = {"num_hidden_layers": 1, "max_position_embeddings": 5}
    scaled = tiny_model(
        encoding="cope", **sizes, position_options={"positions": 5, "log_scale": "all"}
    )
    plain, ids = tiny_model(encoding="cope", **sizes), tokens(2, 12)
    plain.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        plain.model.layers[0].self_attn.q_proj.weight *= math.log(12) / math.log(5)
    torch.testing.assert_close(
        scaled(ids).logits[:, -1], plain(ids).logits[:, -1], rtol=0, atol=rounding(plain, ids)
    )


@pytest.mark.parametrize("backend", ["auto", "flex"])
def test_an_attention_that_cannot_hold_scores_is_refused(backend):
    with pytest.raises(ValueError, match=rf"attention_backend = '{backend}'"):
        tiny_config(encoding="cope", attention_backend=backend)
