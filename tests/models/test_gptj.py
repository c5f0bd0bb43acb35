"""GPT-J with RoPE scaling: transformers' own logits at its own RoPE parameters, and the published formulas at scaled
ones. What it shares with every decoder is in :mod:`tests.models.test_decoders`."""

import math

import numpy as np
import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM

from tape_ds import ScaledGPTJConfig, ScaledGPTJForCausalLM, register
from tape_ds.errors import UserError
from tape_ds.models import decoder
from tape_ds.models.gptj import with_rope
from tape_ds.models.loading import extendable
from tests.models.helpers import tokens

SIZES = {
    "vocab_size": 61,
    "n_positions": 64,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "rotary_dim": 8,
    "n_inner": 40,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
ANGLES = {"ntk": {"rope_type": "ntk", "rope_theta": 10_000.0, "factor": 4.0}, "yarn": YARN}


def theirs(**changes) -> GPTJForCausalLM:
    """transformers' model, with values in the parameters that start at zero or one."""
    torch.manual_seed(0)
    model = GPTJForCausalLM(GPTJConfig(**(SIZES | changes), attn_implementation="eager")).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn(weight.shape))
    return model


def ours(other: GPTJForCausalLM, **changes) -> decoder.ExtendedDecoder:
    """The same weights in this project's model."""
    model = decoder.class_of(ScaledGPTJForCausalLM)(
        extendable.configure(with_rope(other.config), **changes)
    )
    model.load_state_dict(other.state_dict())
    return model.eval()


@pytest.mark.parametrize(
    "changes", [{}, {"rotary_dim": 12}, {"rotary_dim": 2, "n_head": 2, "n_inner": None}]
)
@torch.no_grad()
def test_logits_and_attention_are_transformers_own(changes):
    """A part of each head rotated, and all of it (12 columns). Tolerance: their table is of fp32 angles."""
    other, ids = theirs(**changes), tokens(2, 60)
    found = ours(other, attention_backend="reference")(ids, output_attentions=True)
    expected = other(ids, output_attentions=True)
    torch.testing.assert_close(found.attentions, expected.attentions, rtol=0, atol=2e-5)
    for logits in (found.logits, ours(other)(ids).logits):
        torch.testing.assert_close(logits, expected.logits, rtol=0, atol=2e-5)


def published(kind, dim, factor, window=32):
    """Frequencies as PoSE's GPT-J code computes them, and YaRN's factor on cosine and sine; base 10,000."""
    plain = 10_000.0 ** (-np.arange(0, dim, 2) / dim)
    if kind == "ntk":
        return (10_000.0 * factor ** (dim / (dim - 2))) ** (-np.arange(0, dim, 2) / dim), 1.0
    low, high = (
        dim * math.log(window / (turns * 2 * math.pi)) / (2 * math.log(10_000.0))
        for turns in (32, 1)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
    kept = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return plain / factor * (1 - kept) + plain * kept, 0.1 * math.log(factor) + 1


@pytest.mark.parametrize("kind", ANGLES)
@torch.no_grad()
def test_scaled_angles_are_the_published_ones(kind):
    """transformers' model with its interleaved sin | cos tables replaced by the formula's, at skipped positions."""
    other = theirs(n_positions=512)
    model = ours(other, rope_parameters=ANGLES[kind])
    frequencies, factor = published(kind, 8, ANGLES[kind]["factor"])
    angles = np.arange(512)[:, None] * frequencies
    table = torch.from_numpy(
        np.concatenate((np.sin(angles), np.cos(angles)), axis=1) * factor
    ).float()
    for module in other.modules():  # the attention's, or since transformers 5.24 the model's
        if hasattr(module, "embed_positions"):
            module.embed_positions = table
    ids, places = (
        tokens(2, 20),
        torch.cat((torch.arange(7), torch.arange(300, 313)))[None].expand(2, -1),
    )
    found = model(ids, position_ids=places).logits
    torch.testing.assert_close(found, other(ids, position_ids=places).logits, rtol=0, atol=1e-5)
    assert not torch.allclose(found, model(ids).logits, atol=1e-2)
    with model.with_rope_parameters({"rope_type": "default", "rope_theta": 10_000.0}):
        plain = model(ids).logits
    torch.testing.assert_close(plain, ours(other)(ids).logits, rtol=0, atol=0)
    assert torch.equal(model(ids, position_ids=places).logits, found)


@pytest.mark.parametrize("field, value", [("rotary_dim", 7), ("rotary_dim", 14), ("n_head", 5)])
def test_impossible_sizes_are_named(field, value):
    with pytest.raises(UserError) as refused:
        ScaledGPTJConfig(**SIZES | {field: value})
    assert [problem.field for problem in refused.value.problems] == [field]


def test_dropout_on_attention_is_refused():
    register()
    (problem,) = extendable.check(with_rope(GPTJConfig(**SIZES, attn_pdrop=0.1)))
    assert "attn_pdrop is 0.1" in problem.wrong


def test_a_gptj_takes_no_other_encoding():
    with pytest.raises(UserError, match="whose positions are RoPE"):
        extendable.configure(with_rope(GPTJConfig()), position_encoding="tape")
