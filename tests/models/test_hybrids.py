"""Attention of hybrids without positions: read as published, and RoPE dropped from it."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tape_ds.errors import UserError
from tape_ds.models import decoder, hybrids
from tape_ds.models.loading import extendable
from tests.models.test_decoders import assert_equal, pair
from tests.models.tiny_decoders import VOCABULARY, tiny_config

DROPPABLE = {"olmo_hybrid": {}, "granitemoehybrid": {"position_embedding_type": "rope"}}
"""Hybrids whose class can be built without positions in attention, and what gives them positions."""


class Unturned(torch.nn.Module):
    """Rotates by no angle: cosines of 1 and sines of 0."""

    def __init__(self, columns):
        super().__init__()
        self.columns = columns

    def forward(self, hidden, position_ids, **_):
        wanted = (*position_ids.shape, self.columns)
        return hidden.new_ones(wanted), hidden.new_zeros(wanted)


def logits(model, ids, **given):
    with torch.no_grad():
        return model(ids, use_cache=False, **given).logits


@pytest.mark.parametrize("family", DROPPABLE)
def test_rope_is_dropped_from_attention_alone(family, tmp_path):
    """Against transformers' own class with cosines of 1 and sines of 0; asked for its RoPE it computes as the base."""
    eager, ours = pair(family, **DROPPABLE[family])
    (path,) = decoder.rotary_modules(eager)
    config = hybrids.without_rope(ours.config)
    dropped = decoder.class_of(ours.native)(config).eval()
    dropped.load_state_dict(ours.state_dict())
    ids = torch.randint(3, VOCABULARY, (2, 40))
    with_rope = logits(eager, ids)
    with dropped.with_rope_parameters(ours.config.rope_parameters):
        assert_equal(logits(dropped, ids), with_rope)

    columns = eager.get_submodule(path)(torch.zeros(1), torch.zeros(1, 1))[0].shape[-1]
    eager.set_submodule(path, Unturned(columns))
    without = logits(eager, ids)
    assert (without - with_rope).abs().max() > 1e-3
    assert_equal(logits(dropped, ids), without)

    dropped.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(plain) is ours.native
    assert_equal(logits(plain, ids), without)
    again = extendable.read(tmp_path)
    assert not extendable.check(again) and not hybrids.rotates(again)


@pytest.mark.parametrize(
    "family, wrong",
    [
        ("qwen3_next", "transformers' class for qwen3_next always rotates"),
        ("lfm2", "transformers' class for lfm2 always rotates"),
        ("nemotron_h", "the attention of this nemotron_h has no positions to drop"),
        ("granitemoehybrid", "has no positions to drop"),
    ],
)
def test_other_classes_are_refused_with_the_reason(family, wrong):
    native = tiny_config(family)
    assert hybrids.without_rope(native) is None
    assert wrong in hybrids.why_not_dropped(native)


def stored(folder, rope):
    content = tiny_config("olmo_hybrid").to_dict() | {"rope_parameters": rope}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_olmo_hybrid_as_it_is_published_has_no_positions(tmp_path):
    config = extendable.read(stored(tmp_path, {"rope_theta": None}))
    assert not extendable.check(config) and not hybrids.rotates(config)


def test_a_null_that_its_class_reads_as_rope_is_refused(tmp_path):
    """Its code says that null is attention without positions; it computes RoPE with a base of 10,000."""
    folder = stored(tmp_path, None)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    assert decoder.rotary_modules(model)
    with pytest.raises(UserError) as caught:
        extendable.read(folder)
    (problem,) = caught.value.problems
    assert "null, which transformers reads as RoPE with theta 10000" in problem.wrong
    assert 'write {"rope_theta": null} there if' in problem.remedy
    assert hybrids.rotates(extendable.read(stored(tmp_path, {"rope_theta": 5e5})))


def test_pose_says_what_a_state_sees_of_it():
    native = tiny_config("lfm2")
    assert "PoSE" not in hybrids.lines(native)
    assert "goes on over the text that is left out" in hybrids.lines(native, "skipped")["PoSE"]
    assert "no text is left out" in hybrids.lines(native, "contiguous")["PoSE"]
    assert hybrids.lines(tiny_config("mistral"), "skipped") == {}
