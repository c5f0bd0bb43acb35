"""The model as a whole: equal to Llama, blind to what padding holds, measured with other positions than its own.

What is true of every encoding is in test_contract.py and its neighbours.
"""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tape_ds import TapeForCausalLM
from tape_ds import encodings as positions
from tape_ds.attention import sdpa
from tape_ds.models.changed_positions import change_positions, evaluated_at, positions_of
from tape_ds.models.llama import RMSNorm
from tests.models.helpers import (
    gradients,
    largest_difference,
    rounding,
    tiny_config,
    tiny_model,
    tokens,
)


def llama_like(model: TapeForCausalLM) -> LlamaForCausalLM:
    """transformers' Llama with the model's Llama parameters."""
    names = set(LlamaConfig.__dataclass_fields__)
    llama = LlamaForCausalLM(
        LlamaConfig(**{k: v for k, v in model.config.to_dict().items() if k in names})
    ).eval()
    llama.load_state_dict(
        {name: x for name, x in model.state_dict().items() if ".position." not in name}
    )
    return llama


@pytest.mark.parametrize(
    "encoding, heads, tied",
    [("rope", "mha", False), ("rope", "gqa", True), ("tape", "mqa", False), ("tape", "gqa", True)],
)
def test_a_fresh_model_is_a_llama(encoding, heads, tied):
    """Position updates start at zero effect: before training, extending costs nothing."""
    model = TapeForCausalLM(tiny_config(heads, encoding, tie_word_embeddings=tied)).eval()
    llama = llama_like(model)
    with torch.no_grad():
        for length in (17, 64, 1000):
            ids = tokens(1, length)
            torch.testing.assert_close(
                model(ids).logits, llama(ids).logits, rtol=0, atol=rounding(llama, ids)
            )


def test_mask_and_documents_together():
    """Padding may come from either: the model sees the same."""
    model, ids = tiny_model(), tokens(2, 10)
    mask = torch.ones(2, 10)
    mask[0, :2], mask[1, 8:] = 0, 0
    documents = torch.tensor([[0] * 4 + [1] * 6, [0] * 7 + [1] * 3])
    whole = model(ids, document_ids=documents.masked_fill(mask == 0, -1)).logits
    for kind in (torch.float32, torch.bool, torch.int64):
        assert torch.equal(model(ids, mask.to(kind), document_ids=documents).logits, whole)


@pytest.mark.parametrize("encoding", ["rope", "tape"])
def test_a_jump_in_position_ids_cuts_nothing(encoding):
    """transformers' own mask code takes a jump (PoSE) for a new document when there is no mask and no cache."""
    model, ids = tiny_model(encoding=encoding), tokens(1, 16)
    places = torch.cat((torch.arange(8), torch.arange(8) + 40))[None]
    plain = model(ids, position_ids=places).logits
    torch.testing.assert_close(
        plain, model(ids, torch.ones_like(ids), places).logits, rtol=0, atol=0
    )
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 1) % 50
    assert (model(changed, position_ids=places).logits[:, 8:] - plain[:, 8:]).abs().max() > 1e-4
    if encoding == "rope":
        llama = llama_like(model)(
            ids, attention_mask=torch.ones_like(ids), position_ids=places
        ).logits
        torch.testing.assert_close(plain, llama, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize("padding", [slice(0, 4), slice(8, 12)], ids=["left", "right"])
@pytest.mark.parametrize("way", ["reference", "sdpa", "sdpa by document"])
@pytest.mark.parametrize("encoding", ["tape", "alibi", "cope"])
def test_nothing_leaves_padding(encoding, way, padding, monkeypatch):
    """Real logits, the loss and every gradient are those of padding that holds zeros."""
    if way == "sdpa by document":
        monkeypatch.setattr(sdpa, "MASK_ENTRIES", 0)
    model = tiny_model(encoding=encoding, attention_backend=way.split(" ")[0])
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, padding] = 0
    labels = tokens(2, 12).masked_fill(mask == 0, -100)
    embeddings = torch.randn(2, 12, 32)
    outcomes = []
    for filler in (0.0, float("nan")):
        model.zero_grad()
        x = embeddings.masked_fill(mask[..., None] == 0, filler)
        out = model(inputs_embeds=x, attention_mask=mask, labels=labels)
        out.loss.backward()
        outcomes.append((out.logits[mask == 1], out.loss, gradients(model)))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert largest_difference(outcomes[1][2], outcomes[0][2]) == 0


def test_plain_positions_are_the_llama_inside_the_block_and_the_model_after_it():
    """Evaluation measures what a model was before its extension without loading it twice."""
    model, ids = tiny_model(), tokens(1, 17)
    before, names = model(ids).logits, set(model.state_dict())
    parameters = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    with positions_of(model, positions.plain(model.config, parameters)):
        inside = model(ids).logits
    llama = llama_like(model)
    config = LlamaConfig(**(llama.config.to_dict() | {"rope_parameters": parameters}))
    scaled = LlamaForCausalLM(config).eval()
    scaled.load_state_dict(llama.state_dict())
    torch.testing.assert_close(inside, scaled(ids).logits, rtol=0, atol=rounding(model, ids))
    with (
        pytest.raises(KeyboardInterrupt),
        positions_of(model, positions.plain(model.config, parameters)),
    ):
        raise KeyboardInterrupt
    assert torch.equal(model(ids).logits, before)
    assert set(model.state_dict()) == names


@pytest.mark.parametrize("encoding", ["fire", "tape", "bipe_rope"])
def test_positions_with_parameters_cannot_be_borrowed(encoding):
    """They would be random numbers."""
    model, ids = tiny_model(encoding="rope"), tokens(1, 9)
    before = model(ids).logits
    refusal = pytest.raises(ValueError, match="has parameters of its own")
    with refusal, positions_of(model, tiny_config(encoding=encoding)):
        raise AssertionError("never reached")
    assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("encoding", ["alibi", "randpe", "tape neither"])
def test_positions_without_parameters_can_be_borrowed(encoding):
    """From any model, whatever its own encoding carries; training mode goes along."""
    model, ids = tiny_model(encoding="bipe_rope"), tokens(1, 30)
    other = tiny_model(encoding=encoding)
    other.load_state_dict(
        {name: x for name, x in model.state_dict().items() if ".encoding." not in name}
    )
    for training in (False, True):
        model.train(training)
        other.train(training)
        torch.manual_seed(0)
        expected = other(ids).logits
        torch.manual_seed(0)
        with positions_of(model, other.config):
            assert torch.equal(model(ids).logits, expected)
        assert model.model.encoding.training == training


def yarn(factor):
    parameters = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": factor,
        "original_max_position_embeddings": 32,
    }
    return tiny_config(encoding="yarn", rope_parameters=parameters)


@pytest.mark.parametrize("encoding", ["yarn", "tape", "tape unit"])
@pytest.mark.parametrize("length, factor", [(32, 1.0), (33, 33 / 32), (1000, 31.25)])
def test_yarn_is_evaluated_scaled_to_the_length_in_use(length, factor, encoding):
    """Trained on plain angles; beyond its window the factor is what reaches the text, and only while it is measured."""
    model, ids = (
        tiny_model(encoding=encoding, rope_parameters=yarn(1.0).rope_parameters),
        tokens(1, 40),
    )
    scaled = tiny_model(encoding=encoding, rope_parameters=yarn(factor).rope_parameters)
    scaled.load_state_dict(model.state_dict())
    before = model(ids).logits
    with evaluated_at(model, length):
        inside = model(ids).logits
    assert torch.equal(inside, scaled(ids).logits)
    assert torch.equal(inside, before) == (factor == 1.0)
    assert torch.equal(model(ids).logits, before)
    assert model.config.rope_parameters["factor"] == 1.0


@pytest.mark.parametrize("encoding", ["rope", "tape", "tape unit"])
def test_a_model_with_plain_angles_is_given_yarn_s(encoding):
    """The same weights with RoPE scaled from the window that the model was made for, 64 here."""
    model, ids = tiny_model(encoding=encoding, max_position_embeddings=64), tokens(1, 40)
    config = positions.with_yarn(model.config)
    assert config is not None and positions.with_yarn(config) is None, "they are plain no more"
    four = {**config.rope_parameters, "factor": 4.0}
    scaled = tiny_model(encoding=encoding, max_position_embeddings=64, rope_parameters=four)
    scaled.load_state_dict(model.state_dict())
    plain, expected = model(ids).logits, scaled(ids).logits
    change_positions(model, config)
    model.config = config
    with evaluated_at(model, 64):
        assert torch.equal(model(ids).logits, plain)
    with evaluated_at(model, 256):
        assert torch.equal(model(ids).logits, expected)
    assert not torch.equal(plain, expected)


def test_a_factor_that_reaches_farther_stays():
    """A model extended to 8 windows is not scaled back for a text of two."""
    assert positions.with_yarn(tiny_config(encoding="alibi")) is None
    config = yarn(8.0)
    assert positions.config_at(config, 64) is config
    assert positions.config_at(config, 512).rope_parameters["factor"] == 16.0
    assert config.rope_parameters["factor"] == 8.0


@pytest.mark.parametrize("encoding", ["tape", "tape unit identity", "tape separate", "tape abacus"])
def test_updates_are_off_within_the_block(encoding):
    """The same weights without what layers add to the state; what embeds digits stays."""
    model, ids = tiny_model(encoding=encoding), tokens(2, 13)
    own = model(ids).logits
    off = tiny_config(encoding=encoding)
    off.position_options = {
        **(off.position_options or {}),
        "attention_update": "off",
        "feed_forward": False,
    }
    for name in ("attention_norm", "attention_init"):
        off.position_options.pop(name, None)
    expected = TapeForCausalLM(off).eval()
    kept = model.state_dict()
    expected.load_state_dict({name: kept[name] for name in expected.state_dict()})
    with positions_of(model, positions.without_updates(model.config)):
        assert torch.equal(model(ids).logits, expected(ids).logits)
    assert torch.equal(model(ids).logits, own)
    assert not torch.allclose(own, expected(ids).logits, atol=1e-4)
    assert positions.without_updates(tiny_config(encoding="rope")) is None


def norm_errors(kind, dtype):
    """Largest errors of the normed states and of both gradients, relative to the largest number of each in fp64."""
    torch.manual_seed(0)
    norm = kind(256, eps=1e-5).to("cuda", dtype)
    hidden = (torch.randn(3, 40, 256) * 3).to("cuda", dtype).requires_grad_()
    with torch.no_grad():
        norm.weight.add_(torch.randn(256, device="cuda", dtype=dtype) / 4)
    direction = torch.randn(3, 40, 256).to("cuda", dtype)
    x, w = (each.detach().double().requires_grad_() for each in (hidden, norm.weight))
    exact = w * x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    found = norm(hidden)
    assert found.dtype == dtype
    mine = [found, *torch.autograd.grad(found, [hidden, norm.weight], direction)]
    truth = [exact, *torch.autograd.grad(exact, [x, w], direction.double())]
    return [
        float((a - b).detach().abs().max() / b.detach().abs().max())
        for a, b in zip(mine, truth, strict=True)
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_s_norm_is_as_near_the_exact_one_as_llama_s(dtype):
    ours, theirs = (norm_errors(kind, dtype) for kind in (RMSNorm, LlamaRMSNorm))
    assert all(
        a <= 1.5 * b + 2 * torch.finfo(torch.float32).eps for a, b in zip(ours, theirs, strict=True)
    )
    with torch.autocast("cuda", torch.bfloat16):
        norm_errors(RMSNorm, dtype)  # the dtype of its states, where torch's norm gives fp32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_s_norm_is_llama_s_bit_for_bit(dtype):
    hidden = torch.randn(2, 7, 64).to(dtype)
    ours, theirs = RMSNorm(64).to(dtype), LlamaRMSNorm(64).to(dtype)
    assert torch.equal(ours(hidden), theirs(hidden))
