"""The one place that asks for a model's family: both kinds, and the protocol that they share."""

import pytest
import torch
from transformers import GPT2Config, GPTJConfig, GPTJForCausalLM, LlamaConfig, LlamaForCausalLM

from tape_ds import TapeForCausalLM
from tape_ds.errors import UserError, raise_if_any
from tape_ds.models.decoder import ExtendedDecoder
from tape_ds.models.gptj import with_rope
from tape_ds.models.loading import extendable
from tests.models.helpers import SIZES, tokens

KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {name: SIZES[name] for name in SIZES if name != "head_dim"}),
    "gptj": (
        GPTJForCausalLM,
        GPTJConfig,
        {"vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    ),
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    model, config, sizes = KINDS[request.param]
    torch.manual_seed(0)
    model(config(**{**sizes, **({"num_attention_heads": 4} if request.param == "llama" else {})})).save_pretrained(
        tmp_path
    )
    return tmp_path


@torch.no_grad()
def test_a_model_is_extended_and_measured_as_it_was(folder):
    native = extendable.read(folder)
    raise_if_any(extendable.check(native))
    assert native.max_position_embeddings == 64 and native.rope_parameters["rope_type"] == "default"
    changes = {"position_encoding": "rope", "position_options": None, "state_dtype": None}
    config = extendable.configure(native, **changes, max_position_embeddings=128, rope_parameters=LINEAR)
    model, ids = extendable.load(folder, config).eval(), tokens(1, 12)
    assert isinstance(model, TapeForCausalLM | ExtendedDecoder) and config.max_position_embeddings == 128
    plain = extendable.load(folder, extendable.configure(native, **changes)).eval()
    scaled = model(ids).logits
    assert not torch.allclose(scaled, plain(ids).logits, atol=1e-4)
    with model.with_rope_parameters(native.rope_parameters):
        assert torch.equal(model(ids).logits, plain(ids).logits)
    assert torch.equal(model(ids).logits, scaled)
    model.save_pretrained(folder / "extended")
    again = extendable.read(folder / "extended")
    assert type(again) is type(config) and extendable.check(again) == []
    assert torch.equal(extendable.load(folder / "extended", again).eval()(ids).logits, scaled)


def test_what_is_neither_is_refused_with_the_reason(tmp_path):
    GPT2Config().save_pretrained(tmp_path)
    problems = extendable.check(extendable.read(tmp_path))
    assert "no rotary positions" in str(problems[0])


def test_a_gptj_takes_no_other_encoding():
    with pytest.raises(UserError, match="extended by its own class, whose positions are RoPE"):
        extendable.configure(with_rope(GPTJConfig()), position_encoding="tape")
