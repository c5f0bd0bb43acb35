"""Layers without positions, and scores that grow with the keys seen: against formulas written out in fp64, and against
the model that was published with such layers.

Five of the combinations are also in ``ENCODINGS``, and held to whatever is promised of a model.
"""

import math

import numpy as np
import pytest
import torch
from transformers import Llama4TextConfig, SmolLM3Config, SmolLM3ForCausalLM

from tape_ds import encodings
from tape_ds.encodings import base, log_scale, registry
from tape_ds.models.changed_positions import positions_of
from tape_ds.planning import shape
from tests.models.helpers import (
    HEADS,
    SIZES,
    WITH_EVERY_HEADS,
    gradients,
    norms_in_own_dtype,
    rounding,
    tiny_config,
    tiny_model,
    tokens,
)

H, G, K, WINDOW, LAYERS = 4, 2, 8, 5, 4
WITHOUT_POSITIONS = ("nope", "fox", "cope", "bipe_rope", "bipe_alibi")


def options(name, **own):
    """Of an entry of ``ENCODINGS``, and these."""
    return {**(tiny_config(encoding=name).position_options or {}), **own}


def with_options(name, layers=LAYERS, window=WINDOW, **own):
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
    e = (
        np.concatenate((np.cos(angles), np.sin(angles)), -1)
        .astype(np.float32)
        .astype(np.float64)[None]
        .repeat(G, 0)
    )
    factor = np.maximum(1, np.log(n + 1) / math.log(WINDOW)).astype(np.float32)
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        part = {name.removeprefix(f"model.layers.{layer}."): value for name, value in w.items()}
        y = norm(x, part["input_layernorm.weight"])
        q, k, v = (
            (y @ part[f"self_attn.{name}_proj.weight"].T).reshape(T, -1, K).transpose(1, 0, 2)
            for name in "qkv"
        )
        k, v = k[heads], v[heads]
        bias, placed = 0.0, layer not in without
        if placed and encoding in ("rope", "tape"):
            q, k = turned(q, e[heads]), turned(k, e[heads])
        elif placed and encoding == "alibi":
            bias = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None] * (m - n)
        elif placed:
            log_f = -np.log1p(
                np.exp(-(y @ part["position.gates.weight"].T + part["position.gates.bias"]))
            )
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
    "every second, only these scaled": (
        {"nope_layers": 2, "log_scale": "nope_layers"},
        [1, 3],
        [1, 3],
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("encoding", ["rope", "tape", "alibi", "fox"])
def test_the_model_is_its_formula(encoding, setting, monkeypatch):
    norms_in_own_dtype(monkeypatch)
    own, without, scaled = SETTINGS[setting]
    model, ids = with_options(encoding, **own).double(), tokens(1, 40)
    expected = written_out(model, ids[0].tolist(), encoding, without, scaled)
    with torch.no_grad():
        for length in (1, 40):
            found = model(ids[:, :length]).logits[0].numpy()
            np.testing.assert_allclose(found, expected[:length], rtol=0, atol=1e-12)
    if encoding != "fox":  # whose layers without positions have no gates
        plain = written_out(model, ids[0].tolist(), encoding, [], [])
        assert np.abs(expected - plain).max() > 1e-2, "an option without effect would pass"


@pytest.mark.parametrize("layers, interval", [(12, 2), (5, 3), (12, 4), (3, 4)])
def test_an_interval_counts_as_transformers_does(layers, interval):
    """Their list says 1 where a layer has positions, whatever its name says."""
    kinds = {"num_hidden_layers": layers, "no_rope_layer_interval": interval}
    found = [
        encodings.Options(nope_layers=interval).has_positions(layer) for layer in range(layers)
    ]
    assert found == [bool(each) for each in SmolLM3Config(**kinds).no_rope_layers]
    if interval == 4:  # Llama 4's class has this one alone
        assert found == [
            bool(each) for each in Llama4TextConfig(num_hidden_layers=layers).no_rope_layers
        ]


def test_it_is_transformers_own_smollm3():
    """Three layers with RoPE and one without, weights and names as they are."""
    sizes = {name: value for name, value in SIZES.items() if name != "head_dim"}
    theirs = {**sizes, **HEADS["gqa"], "num_hidden_layers": 5, "pad_token_id": 0, "rope_theta": 2e6}
    published = SmolLM3ForCausalLM(SmolLM3Config(**theirs, tie_word_embeddings=False)).eval()
    angles = {"rope_type": "default", "rope_theta": published.config.rope_parameters["rope_theta"]}
    own = {
        "num_hidden_layers": 5,
        "position_options": {"nope_layers": 4},
        "rope_parameters": angles,
    }
    model = tiny_model(encoding="rope", **own)
    model.load_state_dict(published.state_dict())
    ids = tokens(2, 70)
    torch.testing.assert_close(
        model(ids).logits, published(ids).logits, rtol=0, atol=rounding(model, ids)
    )


@pytest.mark.parametrize("chosen", [[2], [0, 3]])
@pytest.mark.parametrize(
    "encoding", ["tape", "tape vector", "tape unit identity", "tape from alibi", "t5", "fox"]
)
def test_no_parameter_is_without_a_gradient(encoding, chosen):
    """The last layer that has positions makes no update; whatever layer that is, checkpointed or not."""
    model, ids, found = (
        with_options(encoding, nope_layers=chosen).double().train(),
        tokens(2, 12),
        [],
    )
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


@pytest.mark.parametrize("name", [*WITH_EVERY_HEADS, "fox", "pope", "rope dynamic"])
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
    assert all(
        getattr(model.model.encoding, each) == getattr(plain.model.encoding, each) for each in flags
    )


def test_keys_are_counted_within_documents_and_without_padding():
    """Against a loop; documents may be interleaved, and a cache may hold a part."""
    documents = torch.randint(-1, 3, (4, 30), dtype=torch.int32)
    expected = torch.tensor(
        [
            [sum(row[: t + 1] == row[t]).item() if row[t] >= 0 else 0 for t in range(30)]
            for row in documents
        ]
    )
    for offset in (0, 11, torch.tensor(11)):
        found = log_scale.keys_seen(
            base.TokenContext(None, documents, offset, None), 12, torch.device("cpu")
        )
        part = expected[:, int(offset) : int(offset) + 12]
        real = documents[:, int(offset) : int(offset) + 12] >= 0
        assert torch.equal(found[real], part[real])
        found = log_scale.keys_seen(
            base.TokenContext(None, None, offset, None), 12, torch.device("cpu")
        )
        assert found.tolist() == [list(range(1 + int(offset), 13 + int(offset)))]


def by_positions(window=WINDOW, name="rope", **sizes):
    own = options(name, log_scale="all", log_scale_from=window, log_scale_by="positions")
    return tiny_model(encoding=name, position_options=own, num_hidden_layers=3, **sizes)


@pytest.mark.parametrize(
    "name", ["rope", "tape", "alibi", "rope dynamic", "randpe", "t5", "sincos", "pope", "xpos"]
)
def test_positions_count_as_keys_do_in_a_text_from_its_beginning(name):
    """Bit for bit, and whatever max_position_embeddings is."""
    sizes = {"num_hidden_layers": 3, "max_position_embeddings": 64}
    keys = tiny_model(
        encoding=name,
        position_options=options(name, log_scale="all", log_scale_from=WINDOW),
        **sizes,
    )
    positions = by_positions(name=name, max_position_embeddings=64)
    positions.load_state_dict(keys.state_dict())
    ids = tokens(2, 30)
    assert torch.equal(positions(ids).logits, keys(ids).logits)
    assert not positions.model.encoding.translation_invariant


def test_skipped_positions_have_the_factors_of_the_places_they_skip_to(monkeypatch):
    """By hand: each query times its factor, in fp64. By keys, a window as short as this has none."""
    norms_in_own_dtype(monkeypatch)
    model = by_positions(window=16).double()
    ids, places = tokens(1, 12), torch.cat((torch.arange(5), torch.arange(40, 47)))[None]
    expected = (np.log(places[0].numpy() + 1) / math.log(16)).clip(1).astype(np.float32)
    assert expected[:5].tolist() == [1.0] * 5 and expected[5] > 1.3
    scales = []
    scaled = base.PositionLayer.scaled
    monkeypatch.setattr(
        base.PositionLayer, "scaled", lambda self, q, f: scales.append(f) or scaled(self, q, f)
    )
    found = model(ids, position_ids=places).logits
    assert len(scales) == 3 and all(
        scale.flatten().tolist() == expected.tolist() for scale in scales
    )
    monkeypatch.undo()
    norms_in_own_dtype(monkeypatch)
    plain = tiny_model(encoding="rope", num_hidden_layers=3, position_options=None).double()
    plain.load_state_dict(model.state_dict())
    factors = torch.from_numpy(expected).double()[None, None, :, None]
    rotate = type(plain.model.layers[0].position).rotate

    def by_hand(self, q, k, *others):
        q, k = rotate(self, q, k, *others)
        return q * factors, k

    monkeypatch.setattr(type(plain.model.layers[0].position), "rotate", by_hand)
    torch.testing.assert_close(found, plain(ids, position_ids=places).logits, rtol=0, atol=1e-12)
    keys = tiny_model(
        encoding="rope",
        num_hidden_layers=3,
        position_options={"log_scale": "all", "log_scale_from": 16},
    )
    assert keys.model.encoding.log_window == 16


def test_a_cache_padding_and_packing_keep_the_factors_of_positions():
    model, ids = by_positions(), tokens(2, 24)
    whole = model(ids).logits
    first = model(ids[:, :9], use_cache=True)
    second = model(ids[:, 9:], past_key_values=first.past_key_values, use_cache=True).logits
    torch.testing.assert_close(second, whole[:, 9:], rtol=0, atol=rounding(model, ids))
    padded = torch.cat((torch.zeros_like(ids[:, :4]), ids), dim=1)
    mask = (torch.arange(28)[None] >= 4).long().expand(2, -1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    found = model(padded, attention_mask=mask, position_ids=places).logits[:, 4:]
    torch.testing.assert_close(found, whole, rtol=0, atol=rounding(model, ids))
    documents = torch.arange(24)[None].ge(14).int().expand(2, -1)
    packed = model(ids, document_ids=documents).logits[:, 14:]
    alone = model(ids[:, 14:], position_ids=torch.arange(14, 24)[None]).logits
    torch.testing.assert_close(packed, alone, rtol=0, atol=rounding(model, ids))


@pytest.mark.parametrize(
    ("name", "own", "field"),
    [
        ("rope", {"log_scale_from": 9}, "log_scale_from"),
        ("rope", {"log_scale_by": "positions"}, "log_scale_by"),
        ("rope", {"log_scale": "all", "log_scale_from": 1}, "log_scale_from"),
        *(
            (name, {"log_scale": "all", "log_scale_by": "positions"}, "log_scale_by")
            for name in WITHOUT_POSITIONS
        ),
    ],
)
def test_options_of_log_scale_that_mean_nothing_are_refused(name, own, field):
    with pytest.raises(ValueError, match=rf"position_options\.{field} = "):
        with_options(name, **own)


def test_half_precision_is_rounded_once():
    layer, q = (
        registry.build_layer(tiny_config(encoding="rope log scale"), 0),
        torch.randn(1, 4, 6, 8).bfloat16(),
    )
    found = layer.scaled(q, torch.full((1, 1, 6, 1), 1.2345))
    assert torch.equal(found, (q.float() * 1.2345).bfloat16())


EACH = ({"nope_layers": 2}, {"log_scale": "all"})


@pytest.mark.parametrize("own", EACH)
def test_both_can_be_switched_on_for_a_model_without(own):
    """As the published models scale at test time: no name of a parameter depends on them."""
    model, other = with_options("rope"), with_options("rope", **own)
    other.load_state_dict(model.state_dict())
    ids = tokens(1, 20)
    with positions_of(model, other.config):
        assert torch.equal(model(ids).logits, other(ids).logits)
    assert not torch.equal(model(ids).logits, other(ids).logits)
    assert (
        with_options("fox", log_scale="all").state_dict().keys()
        == with_options("fox").state_dict().keys()
    )


@pytest.mark.parametrize(
    "encoding, chosen", [("rope", 2), ("tape", 3), ("tape", [3]), ("t5", [0, 3]), ("fox", [1, 2])]
)
def test_a_plan_counts_the_layers_that_have_positions(encoding, chosen):
    model = with_options(encoding, nope_layers=chosen)
    found = shape.sizes(model.config)
    counted = shape.total(shape.tensors(found, shape.TrainedShape.everything()))
    assert counted == model.num_parameters()
    work = [layer.position.multiplications_per_token(10.0) for layer in model.model.layers]
    assert found.position_work[0] + 10 * found.position_work[1] == pytest.approx(sum(work))
    assert found.placed == sum(
        type(layer.position) is not base.PositionLayer for layer in model.model.layers
    )


@pytest.mark.parametrize(
    ("own", "field"),
    [
        ({"nope_layers": [-1]}, "nope_layers"),
        ({"nope_layers": [1, 4]}, "nope_layers"),
        ({"nope_layers": [3, 2, 1, 0]}, "nope_layers"),
        ({"nope_layers": 1}, "nope_layers"),
        ({"nope_layers": 5}, "nope_layers"),
        ({"nope_layers": True}, "nope_layers"),
        ({"log_scale": "nope_layers"}, "log_scale"),
    ],
)
def test_layers_that_do_not_exist_are_refused(own, field):
    with pytest.raises(ValueError, match=rf"position_options\.{field} = "):
        tiny_config(encoding="rope", num_hidden_layers=LAYERS, position_options=own)
    for fitting in ([0, 3], 2, 4):
        tiny_config(
            encoding="rope", num_hidden_layers=LAYERS, position_options={"nope_layers": fitting}
        )
