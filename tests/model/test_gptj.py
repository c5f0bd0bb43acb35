"""GPT-J with RoPE scaling: transformers' own logits at its own RoPE parameters, and the published formulas at scaled
ones."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GPTJConfig, GPTJForCausalLM

from tape_ds import ScaledGPTJConfig, ScaledGPTJForCausalLM
from tape_ds.errors import UserError
from tape_ds.model import flops, gptj
from tape_ds.model.attention.shifted_groups import use_groups
from tape_ds.model.gptj_configuration import configure
from tests.model.attention.group_masks import in_groups_by_mask
from tests.model.helpers import gradients, largest_difference, tokens

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
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
ANGLES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "yarn": YARN,
    "yarn_revised": YARN | {"rope_type": "yarn_revised"},
}


def theirs(**changes) -> GPTJForCausalLM:
    """transformers' model, with values in the parameters that start at zero or one."""
    torch.manual_seed(0)
    model = GPTJForCausalLM(GPTJConfig(**(SIZES | changes), attn_implementation="eager")).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn(weight.shape))
    return model


def ours(other: GPTJForCausalLM, **changes) -> ScaledGPTJForCausalLM:
    """The same weights in this project's model."""
    model = ScaledGPTJForCausalLM(configure(other.config, **changes))
    model.load_state_dict(other.state_dict())
    return model.eval()


@pytest.fixture(scope="module")
def pair():
    other = theirs()
    return other, ours(other)


# --- transformers' own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"rotary_dim": 12}, {"rotary_dim": 2, "n_head": 2, "n_inner": None}])
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@torch.no_grad()
def test_logits_are_transformers_own(changes, backend):
    """A part of each head rotated, and all of it (12 columns). Tolerance: their table is of fp32 angles."""
    other = theirs(**changes)
    ids = tokens(2, 60)
    torch.testing.assert_close(ours(other, attention_backend=backend)(ids).logits, other(ids).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_is_transformers_own(pair, side):
    other, model = pair
    ids, mask = tokens(3, 20), torch.ones(3, 20, dtype=torch.long)
    for row, padding in ((0, 7), (2, 1)):
        mask[row, slice(0, padding) if side == "left" else slice(20 - padding, 20)] = 0
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    arguments = {"attention_mask": mask, "position_ids": places}
    found, expected = model(ids, **arguments).logits, other(ids, **arguments).logits
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], rtol=0, atol=2e-5)
    assert torch.isfinite(found).all()


@torch.no_grad()
def test_generation_is_transformers_own(pair):
    other, model = pair
    ids = tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **options), other.generate(ids, **options))
    assert torch.equal(model.generate(ids, **options, num_beams=3), other.generate(ids, **options, num_beams=3))


@torch.no_grad()
def test_decoding_equals_the_full_pass(pair):
    model, ids = pair[1], tokens(2, 24)
    places = torch.arange(24)[None] + torch.tensor([[0], [70]])
    full = model(ids, position_ids=places).logits
    cache, parts = DynamicCache(config=model.config), []
    for start, stop in ((0, 10), (10, 11), (11, 12), (12, 24)):
        arguments = {"position_ids": places[:, start:stop], "past_key_values": cache, "use_cache": True}
        parts.append(model(ids[:, start:stop], **arguments).logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), full, rtol=0, atol=2e-5)
    static = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0, cache_implementation="static")
    assert torch.equal(static, model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0))


def test_loss_and_gradients_are_transformers_own():
    other, ids = theirs().train(), tokens(2, 30)
    labels = ids.clone()
    labels[0, :5] = -100
    model = ours(other).train()
    found, expected = model(ids, labels=labels, use_cache=False), other(ids, labels=labels, use_cache=False)
    assert found.logits is None
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=0)
    found.loss.backward()
    expected.loss.backward()
    assert largest_difference(gradients(model), gradients(other)) < 1e-4
    plain = gradients(model)
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=labels, use_cache=False).loss.backward()
    assert largest_difference(gradients(model), plain) < 1e-6
    assert plain.keys() == dict(model.named_parameters()).keys()


# --- RoPE scaling ----------------------------------------------------------------------------------------------------


def published(kind, dim, factor, window=32):
    """Frequencies as PoSE's GPT-J code computes them, and YaRN's factor on cosine and sine; base 10,000."""
    plain = 10_000.0 ** (-np.arange(0, dim, 2) / dim)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "ntk":
        return (10_000.0 * factor ** (dim / (dim - 2))) ** (-np.arange(0, dim, 2) / dim), 1.0
    low, high = (dim * math.log(window / (turns * 2 * math.pi)) / (2 * math.log(10_000.0)) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
    kept = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    if kind == "yarn":
        return plain / factor * (1 - kept) + plain * kept, 0.1 * math.log(factor) + 1
    return plain / ((1 - kept) * factor + kept), 0.1 * math.log(factor) + 1


@pytest.mark.parametrize("kind", ANGLES)
@torch.no_grad()
def test_scaled_angles_are_the_published_ones(kind):
    """transformers' model with its interleaved sin | cos tables replaced by the formula's, at skipped positions."""
    other = theirs(n_positions=512)
    model = ours(other, rope_parameters=ANGLES[kind] | {"rope_theta": 10_000.0})
    frequencies, factor = published(kind, 8, ANGLES[kind]["factor"])
    angles = np.arange(512)[:, None] * frequencies
    table = torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles)), axis=1) * factor).float()
    for module in other.modules():  # the attention's, or since transformers 5.24 the model's
        if hasattr(module, "embed_positions"):
            module.embed_positions = table
    ids, places = tokens(2, 20), torch.cat((torch.arange(7), torch.arange(300, 313)))[None].expand(2, -1)
    found = model(ids, position_ids=places).logits
    torch.testing.assert_close(found, other(ids, position_ids=places).logits, rtol=0, atol=1e-5)
    assert not torch.allclose(found, model(ids).logits, atol=1e-2)
    with model.with_rope_parameters({"rope_type": "default", "rope_theta": 10_000.0}):
        plain = model(ids).logits
    torch.testing.assert_close(plain, ours(other)(ids).logits, rtol=0, atol=0)
    assert torch.equal(model(ids, position_ids=places).logits, found)


@torch.no_grad()
def test_far_positions_keep_their_precision(pair):
    """Rotary scores follow from distances alone: in fp32 angles, 100,000 further on, logits would be off by 1e-2."""
    model, ids = pair[1], tokens(1, 20)
    far = model(ids, position_ids=torch.arange(20)[None] + 100_000).logits
    torch.testing.assert_close(far, model(ids).logits, rtol=0, atol=2e-5)


@torch.no_grad()
def test_documents_are_apart(pair):
    model = pair[1]
    one, two = tokens(1, 9), tokens(1, 6)
    ids, documents = torch.cat((one, two), dim=1), torch.tensor([[0] * 9 + [1] * 6])
    places = torch.cat((torch.arange(9), torch.arange(6)))[None]
    found = model(ids, position_ids=places, document_ids=documents).logits
    torch.testing.assert_close(found, torch.cat((model(one).logits, model(two).logits), dim=1), rtol=0, atol=1e-5)


@torch.no_grad()
def test_no_matrix_of_all_pairs():
    """4,096 tokens of the backend ``auto``: the largest tensor that any operator leaves is an activation's size."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        entries = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            out = function(*arguments, **(options or {}))
            for each in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(each, torch.Tensor):
                    self.entries = max(self.entries, each.numel())
            return out

    model = ours(theirs(n_layer=1))
    with Largest() as largest:
        model(tokens(1, 4096), use_cache=False, logits_to_keep=1)
    assert largest.entries <= 4096 * 4 * 48


def test_groups_are_for_training_alone(monkeypatch):
    """Attention within shifted groups is that under an explicit mask; evaluation is over everything."""
    model, ids = ours(theirs()), tokens(2, 17)
    plain = model(ids).logits
    use_groups(model, 6)
    assert torch.equal(model(ids).logits, plain)
    found = model.train()(ids, use_cache=False).logits
    monkeypatch.setattr(gptj, "attend_in_groups", in_groups_by_mask)
    torch.testing.assert_close(found, model(ids, use_cache=False).logits, rtol=0, atol=2e-5)
    assert not torch.allclose(found, plain, atol=1e-3)


# --- folders and refusals -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_folders_there_and_back(tmp_path):
    other = theirs()
    other.save_pretrained(tmp_path / "native")
    native = AutoConfig.from_pretrained(tmp_path / "native")
    assert type(native) is GPTJConfig
    config = configure(native, rope_parameters=ANGLES["linear"], max_position_embeddings=256)
    assert config.max_position_embeddings == config.n_positions == 256 and config.rope_parameters["rope_theta"] == 1e4
    model, ids = gptj.load(tmp_path / "native", config), tokens(1, 12)
    model.save_pretrained(tmp_path / "scaled")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "scaled")
    assert type(again) is ScaledGPTJForCausalLM and type(again.config) is ScaledGPTJConfig
    assert {**again.config.to_dict(), "_name_or_path": ""} == {**model.config.to_dict(), "_name_or_path": ""}
    assert torch.equal(again(ids).logits, model(ids).logits)
    onward = gptj.load(tmp_path / "scaled", configure(again.config, rope_parameters=None))
    torch.testing.assert_close(onward(ids).logits, other(ids).logits, rtol=0, atol=2e-5)


def test_weights_fit_exactly(tmp_path):
    """Masks and tables of older checkpoints have no place and need none; anything else is named."""
    other = theirs()
    state, config = other.state_dict(), configure(other.config)
    old = {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 64, 64) for layer in range(3)}
    old |= {f"transformer.h.{layer}.attn.masked_bias": torch.tensor(-1e9) for layer in range(3)}
    other.save_pretrained(tmp_path / "old", state_dict=state | old)
    gptj.load(tmp_path / "old", config)
    changed = {name: tensor for name, tensor in state.items() if name != "lm_head.bias"}
    changed["transformer.h.0.attn.gate"] = torch.ones(2)
    changed["transformer.ln_f.weight"] = torch.ones(7)
    other.save_pretrained(tmp_path / "wrong", state_dict=changed)
    with pytest.raises(UserError) as refused:
        gptj.load(tmp_path / "wrong", config)
    for name in ("lm_head.bias", "attn.gate", r"ln_f.weight [7], not [48]"):
        assert name in str(refused.value)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"position_encoding": "tape"}, "position_encoding"),
        ({"position_options": {"rank": 3}}, "position_options"),
        ({"state_dtype": "float32"}, "state_dtype"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}},
            "rope_type",
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
        ({"attention_backend": "flush"}, "attention_backend"),
        ({"rotary_dim": 7}, "rotary_dim"),
        ({"rotary_dim": 14}, "rotary_dim"),
        ({"rotary_dim": 0}, "rotary_dim"),
        ({"resid_pdrop": 0.1}, "resid_pdrop"),
        ({"n_head": 5}, "n_head"),
        ({"windows": 3}, "windows"),
    ],
)
def test_refusals(changes, field):
    with pytest.raises(UserError) as refused:
        configure(GPTJConfig(**SIZES), **changes)
    assert [problem.field for problem in refused.value.problems if field in problem.field]
    assert len(refused.value.problems) == 1


def test_quantised_weights_are_refused():
    native = GPTJConfig(**SIZES, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(UserError, match="quantised"):
        configure(native)


def test_calls_that_cannot_be_answered(pair):
    model, ids = pair[1], tokens(1, 5)
    with pytest.raises(ValueError, match="exactly one"):
        model(ids, inputs_embeds=torch.zeros(1, 5, 48))
    with pytest.raises(ValueError, match="only the reference backend"):
        model(ids, output_attentions=True)
    with pytest.raises(ValueError, match="dimensions"):
        model(ids, attention_mask=torch.ones(1, 1, 5, 5))


@torch.no_grad()
def test_weights_and_hidden_states_are_transformers_own(pair):
    other, ids = pair[0], tokens(2, 11)
    model = ours(other, attention_backend="reference")
    asked = {"output_attentions": True, "output_hidden_states": True}
    found, expected = model(ids, **asked), other(ids, **asked)
    torch.testing.assert_close(found.attentions, expected.attentions, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.hidden_states, expected.hidden_states, rtol=0, atol=2e-5)


def test_flops_are_those_that_are_executed():
    model = ours(theirs(), attention_backend="reference")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens(1, 64), use_cache=False)
    assert counter.get_total_flops() == 2 * flops.multiply_adds(model.config, 64, causal=False)
