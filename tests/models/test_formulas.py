"""Every encoding but TAPE against its published formula, restated here in fp64 NumPy without a line of our code.

The golden files hold one length of 48, inside the window. Here a whole model is computed twice at lengths of one token,
odd ones and ones far beyond ``max_position_embeddings``; what is left between the two is fp32 rounding.
"""

import math

import numpy as np
import pytest
import torch

from tape_ds import encodings
from tests.models.helpers import norms_in_own_dtype, tiny_model, tokens

H, G, K, WINDOW = 6, 2, 8, 64
LENGTHS = [1, 7, 48, 65, 200]
# fp32 logits of order 3 after three layers, of sums over up to 200 keys.
TOLERANCE = 2e-5
TOLERANCES = {"fox": 1e-4}  # scores of order 100, the sums of log f, before the softmax


def numbers(model):
    """Parameters in fp64 by name."""
    return {name: weight.detach().double().numpy() for name, weight in model.state_dict().items()}


def norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def llama(w, x, turn_q, turn_k, bias):
    """Logits of a Llama whose queries and keys are turned and whose scores are biased: [T, D] -> [T, vocabulary]."""
    T, past = len(x), np.tril(np.ones((len(x), len(x)), dtype=bool))
    for layer in range(3):
        part = {name.removeprefix(f"model.layers.{layer}."): value for name, value in w.items()}
        y = norm(x, part["input_layernorm.weight"])
        q, k, v = (
            (y @ part[f"self_attn.{name}_proj.weight"].T).reshape(T, -1, K).transpose(1, 0, 2)
            for name in "qkv"
        )
        k, v = (each.repeat(H // G, axis=0) for each in (k, v))
        scores = turn_q(q, part, y) @ turn_k(k, part, y).transpose(0, 2, 1) / math.sqrt(K) + bias(
            part, y, q, k
        )
        out = softmax(np.where(past, scores, -np.inf)) @ v
        x = x + out.transpose(1, 0, 2).reshape(T, -1) @ part["self_attn.o_proj.weight"].T
        y = norm(x, part["post_attention_layernorm.weight"])
        gate = y @ part["mlp.gate_proj.weight"].T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (y @ part["mlp.up_proj.weight"].T))
            @ part["mlp.down_proj.weight"].T
        )
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def same(x, part, y):
    return x


def none(part, *_):
    return 0.0


def rotation(places, frequencies, factor=1.0):
    """Pairs (j, j + K/2) as complex numbers, turned by their place: [T], or of every head [H, T]."""
    turn = np.exp(1j * np.asarray(places)[..., None] * frequencies) * factor

    def rotate(x, part, y):
        pairs = (x[..., : K // 2] + 1j * x[..., K // 2 :]) * turn
        return np.concatenate((pairs.real, pairs.imag), -1)

    return rotate


PLAIN = 10_000.0 ** (-2 * np.arange(K // 2) / K)


def nope(ids, w, x):
    return same, same, none, x


def rope(ids, w, x):
    turn = rotation(range(len(ids)), PLAIN)
    return turn, turn, none, x


def sincos(ids, w, x):
    waves = np.zeros_like(x)
    for n in range(len(ids)):
        for i in range(x.shape[1] // 2):
            angle = n / 10_000 ** (2 * i / x.shape[1])
            waves[n, 2 * i], waves[n, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return same, same, none, x + waves


def yarn(ids, w, x):
    window, s = 32, 2.0

    def dimension(beta):
        return K * math.log(window / (2 * math.pi * beta)) / (2 * math.log(10_000))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), K - 1)
    own = 1 - np.clip((np.arange(K // 2) - low) / (high - low), 0, 1)
    turn = rotation(range(len(ids)), PLAIN / s * (1 - own) + PLAIN * own, 0.1 * math.log(s) + 1)
    return turn, turn, none, x


def xpos(ids, w, x):
    places = (np.arange(len(ids)) - WINDOW // 2) / 2048
    j = np.arange(K // 2)
    scale = ((2 * j + 0.4 * K) / (1.4 * K)) ** places[:, None]
    turn, scale = rotation(range(len(ids)), PLAIN), np.concatenate((scale, scale), -1)
    return lambda q, *at: turn(q, *at) * scale, lambda k, *at: turn(k, *at) / scale, none, x


# six heads: those of four, then every second of eight
SLOPES = np.array([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


def alibi(ids, w, x):
    # of the key alone: the same after the softmax
    bias = SLOPES[:, None, None] * np.arange(len(ids))
    return same, same, lambda *_: bias, x


def t5(ids, w, x):
    buckets, farthest = 8, 20
    exact, table = buckets // 2, np.zeros((len(ids), len(ids)), dtype=int)
    for n in range(len(ids)):
        for m in range(n + 1):
            r = n - m
            grown = (
                0
                if r < exact
                else math.floor(math.log(r / exact) / math.log(farthest / exact) * exact)
            )
            table[n, m] = r if r < exact else min(exact + grown, buckets - 1)
    return same, same, lambda part, *_: part["position.table.weight"][table].transpose(2, 0, 1), x


def fire(ids, w, x):
    T, L = len(ids), 8.0
    n, m = np.arange(T)[:, None], np.arange(T)[None]

    def bias(part, *_):
        c, mu = part["position.network.curvature"][0], part["position.network.multiplier"][0]
        distance = np.log(np.abs(c * (n - m)) + 1) / (
            np.log(np.abs(c * np.maximum(n, np.abs(mu * L))) + 1) + 1e-6
        )
        inner = (
            distance[..., None] * part["position.network.weight_in"][:, 0]
            + part["position.network.bias_in"]
        )
        out = (
            np.maximum(inner, 0) @ part["position.network.weight_out"].T
            + part["position.network.bias_out"]
        )
        return out.transpose(2, 0, 1)

    return same, same, bias, x


def fox(ids, w, x):
    """The sum of log f over the tokens after the key, up to the query."""

    def bias(part, y, *_):
        f = 1 / (1 + np.exp(-(y @ part["position.gates.weight"].T + part["position.gates.bias"])))
        table = np.zeros((H, len(ids), len(ids)))
        for n in range(len(ids)):
            for m in range(n + 1):
                table[:, n, m] = np.log(f[m + 1 : n + 1]).sum(0)
        return table

    return same, same, bias, x


def cope(ids, w, x):
    """Query n counts back from itself: a key's gate adds to its place, and its place is read between two rows of e."""

    def bias(part, y, q, k):
        e, T = part["position.places.weight"], len(ids)
        table = np.zeros((H, T, T))
        for h in range(H):
            for n in range(T):
                place = 0.0
                for m in range(n, -1, -1):
                    place += 1 / (1 + math.exp(-(q[h, n] @ k[h, m]) / math.sqrt(K)))
                    counted = min(place, len(e) - 1)
                    low = math.floor(counted)
                    high = min(low + 1, len(e) - 1)
                    row = (1 - (counted - low)) * e[low] + (counted - low) * e[high]
                    table[h, n, m] = q[h, n] @ row / math.sqrt(K)
        return table

    return same, same, bias, x


def pope(ids, w, x):
    """Sums over channels of mu_q mu_k cos((s - t) theta + delta), as the real part of a product of complex numbers."""
    phases = np.arange(len(ids))[:, None] * 10_000.0 ** (-np.arange(K) / K)

    def polar(x, part, y, delta=0.0):
        z = np.log1p(np.exp(x)) * np.exp(1j * (phases + delta))
        return np.concatenate((z.real, z.imag), -1)

    def keys(x, part, y):
        delta = np.mod(part["position.phases.delta"], -2 * math.pi)
        return polar(x, part, y, delta.repeat(H // G, axis=0)[:, None])

    return polar, keys, none, x


def prope(ids, w, x):
    """Of four frequencies, three turn."""
    turn = rotation(range(len(ids)), PLAIN * [1, 1, 1, 0])
    return turn, turn, none, x


def randpe(ids, w, x):
    """In evaluation one sorted draw of 64 from 128, and after it one by one."""
    drawn = sorted(
        np.random.Generator(np.random.PCG64(0)).permutation(2 * WINDOW)[:WINDOW].tolist()
    )
    places = [drawn[n] if n < WINDOW else 2 * WINDOW + n - WINDOW for n in range(len(ids))]
    turn = rotation(places, PLAIN)
    return turn, turn, none, x


def repo(ids, w, x):
    """Where a layer has the network, a real number per token and key/value head is its place; elsewhere the index."""

    def turn(x, part, y):
        places = range(len(ids))
        if "position.predictor.final" in part:
            gate, content, final = (
                part[f"position.predictor.{name}"].T for name in ("gate", "content", "final")
            )
            z = (y @ gate / (1 + np.exp(-(y @ gate))) * (y @ content)) @ final
            places = z.T.repeat(H // G, axis=0)
        return rotation(places, PLAIN)(x, part, y)

    return turn, turn, none, x


def segments(ids):
    """(segment, place within it) of each token; a separator belongs to the segment it ends."""
    segment, intra, found = 0, 0, []
    for token in ids:
        found.append((segment, min(intra, 5)))
        segment, intra = (segment + 1, 0) if token in (7, 11) else (segment, intra + 1)
    return np.array(found).T


def bipe_rope(ids, w, x):
    segment, intra = segments(ids)
    turn = rotation(segment, PLAIN)
    return turn, turn, none, x + w["model.encoding.intra.weight"][intra]


def bipe_alibi(ids, w, x):
    segment, intra = segments(ids)
    bias = 96 * SLOPES[:, None, None] * segment
    return same, same, lambda *_: bias, x + w["model.encoding.intra.weight"][intra]


# Of each encoding in the registry. TAPE's is in encodings/test_tape.py, layer by layer.
FORMULAS = [globals()[name] for name in encodings.available() if name != "tape"]
# Encodings whose numbers are not rounded to fp32 on the way, as tables of angles and most biases are.
IN_FP64 = {"cope": cope, "fox": fox, "pope": pope, "repo everywhere": repo}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.__name__)
def test_the_model_is_its_formula(formula, length):
    logits, expected, plain = by_model_and_formula(formula.__name__, formula, length, torch.float32)
    np.testing.assert_allclose(
        logits, expected, rtol=0, atol=TOLERANCES.get(formula.__name__, TOLERANCE)
    )
    if length > 1 and formula is not nope:
        assert np.abs(expected - plain).max() > 1e-2, "an encoding without effect would pass"


@pytest.mark.parametrize("encoding", IN_FP64)
def test_in_fp64_the_model_is_its_formula_to_1e_12(encoding, monkeypatch):
    norms_in_own_dtype(monkeypatch)
    logits, expected, _ = by_model_and_formula(encoding, IN_FP64[encoding], 65, torch.float64)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12)


def by_model_and_formula(encoding, formula, length, dtype):
    """Logits [T, vocabulary] of the model, by the formula, and of a model without positions."""
    heads = {"hidden_size": H * K, "num_attention_heads": H, "num_key_value_heads": G}
    model, ids = tiny_model(encoding=encoding, **heads).to(dtype), tokens(1, length)
    w, listed = numbers(model), ids[0].tolist()
    embedded = w["model.embed_tokens.weight"][listed]
    turn_q, turn_k, bias, x = formula(listed, w, embedded)
    with torch.no_grad():
        logits = model(ids).logits[0].numpy()
    return logits, llama(w, x, turn_q, turn_k, bias), llama(w, embedded, same, same, none)
