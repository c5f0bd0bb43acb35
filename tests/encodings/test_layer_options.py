"""Layers without positions and scores that grow with the keys seen, beside the encodings: against formulas written out
in fp64, and against the model that was published with such layers.

Five of the combinations are also in ``ENCODINGS``, and held to whatever is promised of a model.
"""

import math

import numpy as np
import pytest
import torch
from transformers import Llama4TextConfig, SmolLM3Config, SmolLM3ForCausalLM

from tape_ds import encodings
from tape_ds.encodings import base, log_scale, registry
from tape_ds.models.convert import to_plain
from tape_ds.models.llama import positions_of
from tape_ds.planning import shape
from tape_ds.scoring import inspection
from tests.models.helpers import (
    ENCODINGS,
    HEADS,
    SIZES,
    gradients,
    norms_in_own_dtype,
    rounding,
    tiny_config,
    tiny_model,
    tokens,
)

H, G, K, WINDOW, LAYERS = 4, 2, 8, 5, 4


def options(name, **own):
    """Of an entry of ``ENCODINGS``, with these beside."""
    return {**(tiny_config(encoding=name).position_options or {}), **own}


def with_options(name, layers=LAYERS, window=WINDOW, **own):
    """A tiny model of that."""
    sizes = {"num_hidden_layers": layers, "max_position_embeddings": window}
    return tiny_model(encoding=name, position_options=options(name, **own), **sizes)


def norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def turned(x, e):
    """Pairs (j, j + K/2) by the states [cos | sin] of their heads."""
    z = (x[..., : K // 2] + 1j * x[..., K // 2 :]) * (e[..., : K // 2] + 1j * e[..., K // 2 :])
    return np.concatenate((z.real, z.imag), -1)


def written_out(model, ids, encoding, without, scaled):
    """Logits [T, V] of rope, tape, alibi or fox; ``without``: layers without positions, ``scaled``: those whose queries
    are scaled. Tables are rounded to fp32, as the model's are."""
    w = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
    T, heads = len(ids), np.arange(H) // (H // G)
    n, m = np.arange(T)[:, None], np.arange(T)[None]
    angles = n * 10_000.0 ** (-2 * np.arange(K // 2) / K)
    e = np.concatenate((np.cos(angles), np.sin(angles)), -1).astype(np.float32).astype(np.float64)[None].repeat(G, 0)
    factor = np.maximum(1, np.log(n + 1) / math.log(WINDOW)).astype(np.float32)
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        part = {name.removeprefix(f"model.layers.{layer}."): value for name, value in w.items()}
        y = norm(x, part["input_layernorm.weight"])
        q, k, v = ((y @ part[f"self_attn.{name}_proj.weight"].T).reshape(T, -1, K).transpose(1, 0, 2) for name in "qkv")
        k, v = k[heads], v[heads]
        bias, placed = 0.0, layer not in without
        if placed and encoding in ("rope", "tape"):
            q, k = turned(q, e[heads]), turned(k, e[heads])
        elif placed and encoding == "alibi":
            bias = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None] * (m - n)
        elif placed:
            log_f = -np.log1p(np.exp(-(y @ part["position.gates.weight"].T + part["position.gates.bias"])))
            c = log_f.cumsum(0).T
            bias = c[:, :, None] - c[:, None, :]
        if layer in scaled:
            q = q * factor
        scores = np.where(m <= n, q @ k.transpose(0, 2, 1) / math.sqrt(K) + bias, -np.inf)
        A = np.exp(scores - scores.max(-1, keepdims=True))
        A = A / A.sum(-1, keepdims=True)
        x = x + (A @ v).transpose(1, 0, 2).reshape(T, -1) @ part["self_attn.o_proj.weight"].T
        y = norm(x, part["post_attention_layernorm.weight"])
        y = (silu(y @ part["mlp.gate_proj.weight"].T) * (y @ part["mlp.up_proj.weight"].T)) @ part[
            "mlp.down_proj.weight"
        ].T
        x = x + y
        if "position.attend.weight" in part:
            e = e + np.einsum("gh,htk->gtk", part["position.attend.weight"], A @ e[heads])
            gate, up = silu(y @ part["position.gate.weight"].T), part["position.expand.weight"]
            e = e + np.einsum("gi,ti,ih,htk->gtk", part["position.contract.weight"], gate, up, e)
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


# What is asked, the layers without positions, and those that are scaled.
SETTINGS = {
    "every second": ({"nope_layers": 2}, [1, 3], []),
    "the first and the last": ({"nope_layers": [3, 0]}, [0, 3], []),
    "scaled": ({"log_scale": "all"}, [], range(LAYERS)),
    "one, all scaled": ({"nope_layers": [1], "log_scale": "all"}, [1], range(LAYERS)),
    "every second, only these scaled": ({"nope_layers": 2, "log_scale": "nope_layers"}, [1, 3], [1, 3]),
}


@pytest.mark.parametrize("length", [1, 6, 40])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("encoding", ["rope", "tape", "alibi", "fox"])
def test_the_model_is_its_formula(encoding, setting, length, monkeypatch):
    norms_in_own_dtype(monkeypatch)
    own, without, scaled = SETTINGS[setting]
    model, ids = with_options(encoding, **own).double(), tokens(1, length)
    expected = written_out(model, ids[0].tolist(), encoding, without, scaled)
    with torch.no_grad():
        np.testing.assert_allclose(model(ids).logits[0].numpy(), expected, rtol=0, atol=1e-12)
    if length == 40 and encoding != "fox":  # whose layers without positions have no gates
        plain = written_out(model, ids[0].tolist(), encoding, [], [])
        assert np.abs(expected - plain).max() > 1e-2, "an option without effect would pass"


@pytest.mark.parametrize("layers", [3, 4, 5, 12])
@pytest.mark.parametrize("interval", [2, 3, 4])
def test_an_interval_counts_as_transformers_does(layers, interval):
    """Their list says 1 where a layer has positions, whatever its name says."""
    kinds = {"num_hidden_layers": layers, "no_rope_layer_interval": interval}
    found = [encodings.Options(nope_layers=interval).has_positions(layer) for layer in range(layers)]
    assert found == [bool(each) for each in SmolLM3Config(**kinds).no_rope_layers]
    if interval == 4:  # Llama 4's class has this one alone
        assert found == [bool(each) for each in Llama4TextConfig(num_hidden_layers=layers).no_rope_layers]


def test_it_is_transformers_own_smollm3():
    """Three layers with RoPE and one without, weights and names as they are."""
    sizes = {name: value for name, value in SIZES.items() if name != "head_dim"}
    theirs = {**sizes, **HEADS["gqa"], "num_hidden_layers": 5, "pad_token_id": 0, "rope_theta": 2e6}
    published = SmolLM3ForCausalLM(SmolLM3Config(**theirs, tie_word_embeddings=False)).eval()
    angles = {"rope_type": "default", "rope_theta": published.config.rope_parameters["rope_theta"]}
    own = {"num_hidden_layers": 5, "position_options": {"nope_layers": 4}, "rope_parameters": angles}
    model = tiny_model(encoding="rope", **own)
    model.load_state_dict(published.state_dict())
    ids = tokens(2, 70)
    torch.testing.assert_close(model(ids).logits, published(ids).logits, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(None, (0, 6, 7)), (2, (0, 6, 4)), (4, (0, 6, 6)), (7, (0, 5, 6)), ([0, 6, 5, 6], (1, 4, 4))],
)
def test_the_layers_that_have_positions(chosen, expected):
    times = encodings.Options(nope_layers=chosen).alike(7)
    found = min(times), encodings.Options(nope_layers=chosen).last_placed(7), sum(times.values())
    assert found == expected


@pytest.mark.parametrize("chosen", [2, [0], [2], [1, 2], [0, 1], [0, 3]])
@pytest.mark.parametrize("encoding", [*(name for name in ENCODINGS if name.startswith("tape")), "t5", "fox"])
def test_no_parameter_is_without_a_gradient(encoding, chosen):
    """The last layer that has positions makes no update; whatever layer that is, checkpointed or not."""
    model, ids, found = with_options(encoding, nope_layers=chosen).double().train(), tokens(2, 12), []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(0)
        model(ids, labels=ids).loss.backward()
        found.append(gradients(model))
    assert found[0].keys() == found[1].keys() == {name for name, _ in model.named_parameters()}
    for name, gradient in found[0].items():
        assert gradient.any()
        torch.testing.assert_close(found[1][name], gradient, rtol=0, atol=1e-12)


def test_a_state_passes_through_a_layer_without_positions():
    """The tensor itself: nothing is computed, and a checkpoint keeps nothing more."""
    model, seen = with_options("tape", nope_layers=[1, 3]), []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _, given, out: seen.append((given[1], out[1])))
    model(tokens(1, 9))
    (none, first), (second, third), (fourth, fifth), (sixth, seventh) = seen
    assert none is None and first is not None
    assert first is second is third is fourth is fifth is sixth is seventh


@pytest.mark.parametrize("name", ENCODINGS)
def test_up_to_the_window_nothing_is_scaled(name):
    """To the last bit; beyond it, every query but the first of a layer is."""
    lengths = {"num_hidden_layers": 3, "max_position_embeddings": 16}
    plain = tiny_model(encoding=name, **lengths, position_options=options(name, log_scale="none"))
    model = tiny_model(encoding=name, **lengths, position_options=options(name, log_scale="all"))
    model.load_state_dict(plain.state_dict())
    ids = tokens(2, 16)
    assert torch.equal(model(ids).logits, plain(ids).logits)
    ids = tokens(2, 24)
    mine, theirs = model(ids).logits, plain(ids).logits
    if name != "rope dynamic":  # its angles follow from the length
        assert torch.equal(mine[:, 0], theirs[:, 0])
    assert not torch.equal(mine[:, -1], theirs[:, -1])
    flags = ("translation_invariant", "cache_exact", "remembers", "draws")
    assert all(getattr(model.model.encoding, each) == getattr(plain.model.encoding, each) for each in flags)


def test_keys_are_counted_within_documents_and_without_padding():
    """Against a loop; documents may be interleaved, and a cache may hold a part."""
    documents = torch.randint(-1, 3, (4, 30), dtype=torch.int32)
    expected = torch.tensor(
        [[sum(row[: t + 1] == row[t]).item() if row[t] >= 0 else 0 for t in range(30)] for row in documents]
    )
    for offset in (0, 11, torch.tensor(11)):
        found = log_scale.keys_seen(base.TokenContext(None, documents, offset, None), 12, torch.device("cpu"))
        part = expected[:, int(offset) : int(offset) + 12]
        real = documents[:, int(offset) : int(offset) + 12] >= 0
        assert torch.equal(found[real], part[real])
        found = log_scale.keys_seen(base.TokenContext(None, None, offset, None), 12, torch.device("cpu"))
        assert found.tolist() == [list(range(1 + int(offset), 13 + int(offset)))]


def test_a_factor_is_the_logarithm_to_the_base_of_the_window():
    found = log_scale.factors(torch.tensor([[0, 1, 16, 17, 256, 4096]]), 16)
    assert found.shape == (1, 1, 6, 1) and found.dtype == torch.float32
    assert found.flatten().tolist() == pytest.approx([1, 1, 1, math.log(17) / math.log(16), 2, 3], rel=1e-7)


@pytest.mark.parametrize("encoding", ["rope", "tape", "alibi"])
def test_position_ids_change_no_factor(encoding):
    """PoSE's jumps leave as many keys as there were, and ids that are the same everywhere still count."""
    model = with_options(encoding, log_scale="all").eval()
    seen = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(
            lambda _, given, named: seen.append(named["inputs"].query_scale), with_kwargs=True
        )
    ids, places = tokens(1, 12), torch.arange(12)[None]
    for given in (places, places + 400, places + 50 * (places > 6)):
        model(ids, position_ids=given)
    assert all(torch.equal(each, seen[0]) for each in seen)


def test_without_the_option_nothing_is_counted(monkeypatch):
    def refused(*_):
        raise AssertionError("not asked for")

    monkeypatch.setattr(log_scale, "keys_seen", refused)
    tiny_model(encoding="rope nope layers")(tokens(1, 9))


def test_half_precision_is_rounded_once():
    layer, q = registry.build_layer(tiny_config(encoding="rope log scale"), 0), torch.randn(1, 4, 6, 8).bfloat16()
    found = layer.scaled(q, torch.full((1, 1, 6, 1), 1.2345))
    assert torch.equal(found, (q.float() * 1.2345).bfloat16())


BESIDE = ({"nope_layers": 2}, {"log_scale": "all"})


@pytest.mark.parametrize("own", BESIDE)
def test_no_llama_computes_it(own):
    """Neither is it measured as the Llama it was, nor saved as one; nor is SmolLM3's layout exported as SmolLM3."""
    model = with_options("rope", **own)
    assert not encodings.is_plain(model.config) and encodings.llama_rope_parameters(model.config) is None
    with pytest.raises(ValueError, match="not expressible as a Llama"):
        to_plain(model)
    plain = tiny_model(encoding="rope", num_hidden_layers=LAYERS)
    plain.load_state_dict(model.state_dict())
    ids = tokens(1, 9)
    own_logits = model(ids).logits
    with model.with_rope_parameters(model.config.rope_parameters):
        assert torch.equal(model(ids).logits, plain(ids).logits)
    assert torch.equal(model(ids).logits, own_logits) and not torch.equal(own_logits, plain(ids).logits)
    given = plain.config.__class__(**{**plain.config.to_dict(), "position_options": {"random_shift": 3}})
    assert encodings.is_plain(given), "an option that changes no evaluation"


@pytest.mark.parametrize("own", BESIDE)
def test_both_can_be_switched_on_for_a_model_without(own):
    """As the published models scale at test time: no name of a parameter depends on them."""
    model, other = with_options("rope"), with_options("rope", **own)
    other.load_state_dict(model.state_dict())
    ids = tokens(1, 20)
    with positions_of(model, other.config):
        assert torch.equal(model(ids).logits, other(ids).logits)
    assert not torch.equal(model(ids).logits, other(ids).logits)
    assert with_options("fox", log_scale="all").state_dict().keys() == with_options("fox").state_dict().keys()


@pytest.mark.parametrize("own", BESIDE)
def test_updates_are_switched_off_beside_them(own):
    model, ids = with_options("tape", **own), tokens(1, 20)
    off = with_options("rope", **own)
    kept = model.state_dict()
    off.load_state_dict({name: kept[name] for name in off.state_dict()})
    before = model(ids).logits
    with positions_of(model, encodings.without_updates(model.config)):
        assert torch.equal(model(ids).logits, off(ids).logits)
    assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("encoding", ["rope", "tape", "alibi", "fox"])
def test_a_layer_without_positions_is_seen_as_one(encoding):
    model, found = with_options(encoding, nope_layers=2), {}
    inspection.inspect(model, tokens(1, 9)[0], range(1, LAYERS + 1), lambda view: found.update({view.number: view}))
    for number, view in found.items():
        assert (type(model.model.layers[number - 1].position) is base.PositionLayer) == (number in (2, 4))
        if number in (2, 4):
            assert view.positions is view.start is view.deviation is None
        elif encoding != "fox":
            assert view.positions is not None


@pytest.mark.parametrize("chosen", [2, 3, [0, 3], [3], [1, 2]])
@pytest.mark.parametrize("encoding", ["rope", "tape", "alibi", "t5", "fire", "fox"])
def test_a_plan_counts_the_layers_that_have_positions(encoding, chosen):
    model = with_options(encoding, nope_layers=chosen)
    found = shape.sizes(model.config)
    counted = shape.total(shape.tensors(found, shape.TrainedShape.everything()))
    assert counted == model.num_parameters()
    work = [layer.position.multiplications_per_token(10.0) for layer in model.model.layers]
    assert found.position_work[0] + 10 * found.position_work[1] == pytest.approx(sum(work))
    assert found.placed == sum(type(layer.position) is not base.PositionLayer for layer in model.model.layers)


@pytest.mark.parametrize(
    ("own", "field", "words"),
    [
        ({"nope_layers": [-1]}, "nope_layers", "give some of 0 .. 3"),
        ({"nope_layers": [1, 4]}, "nope_layers", "give some of 0 .. 3"),
        ({"nope_layers": [3, 2, 1, 0]}, "nope_layers", "no layer would keep its positions"),
        ({"nope_layers": 0}, "nope_layers", "2 .. 4 for every n-th"),
        ({"nope_layers": 1}, "nope_layers", "2 .. 4 for every n-th"),
        ({"nope_layers": 5}, "nope_layers", "there are 4 layers"),
        ({"nope_layers": True}, "nope_layers", "give a list, each item a whole number, or a whole number, or null"),
        ({"nope_layers": "all"}, "nope_layers", "give a list, each item a whole number, or a whole number, or null"),
        ({"log_scale": "nope_layers"}, "log_scale", "add nope_layers"),
        ({"log_scale": True}, "log_scale", "one of: none, all, nope_layers"),
    ],
)
@pytest.mark.parametrize("name", ["rope", "bipe_alibi", "tape"])
def test_what_cannot_be(name, own, field, words):
    with pytest.raises(ValueError, match=rf"(?s)position_options\.{field} = .*{words}"):
        tiny_config(encoding=name, num_hidden_layers=LAYERS, position_options=options(name, **own))


def test_a_window_of_one_token_has_no_logarithm():
    with pytest.raises(ValueError, match="max_position_embeddings = 1: log_scale divides"):
        tiny_config(encoding="rope", max_position_embeddings=1, position_options={"log_scale": "all"})
