"""An encoding from outside the package: one call, and a model trains, decodes and is refused like any other."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tape_ds import encodings
from tape_ds.attention.score_bias import ScoreBias
from tape_ds.encodings import base, registry
from tape_ds.encodings.alibi import AlibiEncoding
from tape_ds.encodings.options import bounded
from tape_ds.errors import UserError
from tests.models.helpers import randomised, tiny_config, tiny_model, tokens

NAME = "outside"


@dataclass(frozen=True)
class OutsideOptions(encodings.Options):
    strength: float = bounded(1.0, gt=0)

    learns = True
    biases_scores = True


class Slope(base.Weight):
    def forward(self):
        return self.weight.clone()


class OutsideLayer(base.PositionLayer):
    """Adds ``-strength slope_h (n - m)``."""

    def __init__(self, config, options, layer_idx):
        super().__init__()
        self.slope, self.strength = Slope(config.num_attention_heads), options.strength

    def score_bias(self, positions, carried, heads=base.EVERY_HEAD):
        slope_H11 = nn.functional.softplus(self.slope()[heads])[:, None, None]

        def block(queries, keys):
            return -self.strength * slope_H11 * (queries - keys.transpose(-1, -2))

        return ScoreBias(*base.marks(positions), block, learned=True)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    encodings.register(NAME, OutsideOptions, AlibiEncoding, OutsideLayer)


def model_of(**options):
    return randomised(tiny_model(position_encoding=NAME, position_options=options or None))


def test_it_is_named_and_checked_like_ours():
    assert (
        NAME in encodings.available()
        and encodings.options_of(NAME, {}).learns
        and encodings.options_of(NAME, {}).biases_scores
    )
    (problem,) = encodings.check_options(NAME, {"strength": 0})
    assert problem.field == "position_options.strength"
    with pytest.raises(UserError, match="strenght"):
        tiny_config(position_encoding=NAME, position_options={"strenght": 1.0})


def test_a_name_is_registered_once():
    encodings.register(NAME, OutsideOptions, AlibiEncoding, OutsideLayer)  # the same again changes nothing
    with pytest.raises(ValueError, match="registered already"):
        encodings.register("rope", OutsideOptions, AlibiEncoding, OutsideLayer)


def test_shifts_change_nothing_and_a_cache_gives_the_full_pass():
    model, ids, places = model_of(strength=0.5).double().eval(), tokens(1, 14), torch.arange(14)[None]
    with torch.no_grad():
        logits = model(ids).logits
        shifted = model(ids, position_ids=places + 500).logits
        first = model(ids[:, :6], use_cache=True)
        rest = model(ids[:, 6:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(shifted, logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(rest, logits[:, 6:], rtol=0, atol=1e-12)


def test_it_trains():
    model, ids = model_of().train(), tokens(2, 12)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(5):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(layer.position.slope.weight.grad.abs().sum() > 0 for layer in model.model.layers)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
