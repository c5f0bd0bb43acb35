"""What is seen of a forward is what it computed, for every encoding, and seeing it changes nothing."""

import pytest
import torch

from tape_ds.encodings.tape import current
from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.scoring import inspection
from tests.models.helpers import MODELS, rounding, tiny_model, tokens
from tools.experiments import inspected_models


def views(model, ids, layers=(1, 2, 3), positions=None):
    """Every layer's view by number, and the logits."""
    found = {}
    logits = inspection.inspect(
        model, ids, layers, lambda view: found.update({view.number: view}), positions
    )
    return found, logits


@pytest.mark.parametrize(("heads", "encoding"), MODELS)
def test_logits_and_weights_are_the_model_s_own(heads, encoding):
    model, ids = tiny_model(heads, encoding), tokens(1, 24)[0]
    found, logits = views(model, ids)
    torch.testing.assert_close(logits, model(ids[None]).logits[0].detach(), rtol=1e-4, atol=2e-5)
    model.config.attention_backend = "reference"
    weights = model(ids[None], output_attentions=True).attentions
    for number, view in found.items():
        found_HTS, own_HTS = view.weights_HTS, weights[number - 1][0].detach()
        torch.testing.assert_close(found_HTS, own_HTS, rtol=0, atol=rounding(model, ids[None]))


def test_an_environment_that_asks_for_another_attention_is_named(monkeypatch):
    monkeypatch.setenv("TAPE_DS_ATTENTION", "sdpa")
    with pytest.raises(UserError, match="TAPE_DS_ATTENTION"):
        views(tiny_model(), tokens(1, 10)[0])


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [("rope", "dot product"), ("tape", "dot product"), ("alibi", "score bias"), ("cope", None)],
)
def test_an_encoding_has_its_kind_of_positions(encoding, kind):
    positions = views(tiny_model(encoding=encoding), tokens(1, 24)[0], layers=[3])[0][3].positions
    assert (positions.kind if positions else None) == kind
    assert positions is None or positions.matrix().shape[1:] == (24, 24)


def test_rope_s_dot_products_are_its_cosines():
    places = torch.arange(24) + 5
    found, _ = views(tiny_model(encoding="rope"), tokens(1, 24)[0], positions=places)
    angles_TTC = (places[:, None] - places)[..., None] * 10_000.0 ** -(torch.arange(0, 8, 2) / 8)
    for view in found.values():
        torch.testing.assert_close(
            view.positions.matrix()[0], angles_TTC.cos().mean(dim=-1), rtol=0, atol=2e-6
        )


@pytest.mark.parametrize(
    ("encoding", "columns"), [("tape", 8), ("tape separate", 8), ("tape flattened", 16)]
)
def test_tape_s_dot_products_are_those_of_the_states_each_layer_reads(encoding, columns):
    model, ids = tiny_model(encoding=encoding), tokens(1, 24)[0]
    read = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(
            lambda _, given, named: read.append((named["inputs"].start, given[1])), with_kwargs=True
        )
    found, _ = views(model, ids)
    for number, (start, state) in enumerate(read, 1):
        e_GTC = current(start, state)[0]
        assert e_GTC.shape[-1] == columns
        products = e_GTC @ e_GTC.mT / (columns / 2)
        torch.testing.assert_close(found[number].positions.matrix(), products, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(
        found[1].positions.matrix(), found[3].positions.matrix(), atol=0.01
    ), "it learned nothing"


def test_alibi_s_bias_is_a_slope_times_the_distance():
    found, _ = views(tiny_model(encoding="alibi"), tokens(1, 200)[0], layers=[1])
    bias_HTT = found[1].positions.matrix()
    places = torch.arange(200)
    for head, slope in enumerate([2**-2, 2**-4, 2**-6, 2**-8]):
        assert torch.equal(bias_HTT[head], slope * (places - places[:, None]).float())


def test_a_plain_llama_is_read_into_a_model_that_gives_its_logits():
    plain, ids = convert.to_plain(tiny_model(encoding="rope")), tokens(1, 24)
    own = inspected_models.as_own(plain)
    assert own is not plain and inspected_models.as_own(own) is own
    _, logits = views(own, ids[0])
    torch.testing.assert_close(logits, plain(ids).logits[0].detach(), rtol=1e-4, atol=2e-5)
