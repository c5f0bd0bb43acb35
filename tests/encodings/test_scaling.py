"""Frequencies against transformers' own, or against the formulas of those it lacks; every wrong ``rope_parameters``
found before a model is built."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tape_ds.encodings import scaling
from tape_ds.encodings.rope import dynamic_frequencies

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
PARAMETERS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "linear, whole factor": {"rope_type": "linear", "factor": 3},
    "yarn": YARN,
    "yarn x1": YARN | {"factor": 1.0},
    "yarn x2 of 8192": YARN | {"factor": 2.0, "original_max_position_embeddings": 8192},
    "yarn, own attention factor": YARN | {"attention_factor": 1.25},
    "yarn, own betas": YARN | {"beta_fast": 16, "beta_slow": 2},
    "yarn, not truncated": YARN | {"truncate": False},
    "yarn, tiny window": YARN | {"original_max_position_embeddings": 16},
    "llama3": LLAMA3,
    "llama3.2": LLAMA3 | {"factor": 32.0},
}


def transformers_frequencies(parameters, head_size):
    config = LlamaConfig(
        hidden_size=head_size * 2, num_attention_heads=2, head_dim=head_size, rope_parameters=dict(parameters)
    )
    if parameters["rope_type"] == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))


@pytest.mark.parametrize("theta", [10_000.0, 100_000, 500_000.0])
@pytest.mark.parametrize("head_size", [8, 64, 128])
@pytest.mark.parametrize("name", PARAMETERS)
def test_frequencies_are_transformers(name, head_size, theta):
    """A checkpoint's own scaling must mean here what it means in the library that trained it."""
    parameters = PARAMETERS[name] | {"rope_theta": theta}
    mine, factor = scaling.frequencies(parameters, head_size)
    theirs, their_factor = transformers_frequencies(parameters, head_size)
    assert mine.dtype == np.float64 and mine.shape == (head_size // 2,)
    np.testing.assert_allclose(mine, theirs.double().numpy(), rtol=1e-6)
    assert factor == pytest.approx(their_factor, rel=1e-12)


def test_every_type_is_compared():
    """Here, or below with a formula of its own (``dynamic`` in test_rope.py too, where it has a length)."""
    compared = {parameters["rope_type"] for parameters in PARAMETERS.values()}
    assert compared | {"ntk", "yarn_revised", "dynamic"} == set(scaling.available())


@pytest.mark.parametrize("factor", [1, 2.0, 8.0])
@pytest.mark.parametrize("head_size", [8, 128])
def test_static_ntk(head_size, factor):
    """PoSE's ``vanilla_ntk``: base' = base s^(D / (D - 2)). The fastest wave stays, the slowest is divided by s."""
    parameters = {"rope_type": "ntk", "rope_theta": 10_000.0, "factor": factor}
    mine, on_cosine = scaling.frequencies(parameters, head_size)
    base = 10_000.0 * factor ** (head_size / (head_size - 2))
    expected = [base ** (-2 * j / head_size) for j in range(head_size // 2)]
    np.testing.assert_allclose(mine, expected, rtol=1e-14)
    assert on_cosine == 1.0
    slowest = 10_000.0 ** (-(head_size - 2) / head_size)
    assert (mine[0], mine[-1]) == (1.0, pytest.approx(slowest / factor, rel=1e-12))


@pytest.mark.parametrize("theta, window", [(10_000.0, 2048), (5e5, 8192), (10_000.0, 64)])
@pytest.mark.parametrize("factor", [1.0, 4.0, 64.0])
@pytest.mark.parametrize("head_size", [64, 128])
def test_revised_yarn_blends_wavelengths(head_size, factor, theta, window):
    """PoSE: f_j = theta_j / ((1 - g_j) s + g_j), g_j = 1 - clamp((j - low) / (high - low), 0, 1), one j at a time."""
    parameters = {"rope_type": "yarn_revised", "rope_theta": theta, "factor": factor}
    parameters["original_max_position_embeddings"] = window
    mine, on_cosine = scaling.frequencies(parameters, head_size)

    def dimension(beta):
        return head_size * math.log(window / (2 * math.pi * beta)) / (2 * math.log(theta))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), head_size - 1)
    for j in range(head_size // 2):
        kept = 1 - min(max((j - low) / (high - low), 0), 1)
        own = theta ** (-2 * j / head_size)
        assert mine[j] == pytest.approx(own / ((1 - kept) * factor + kept), rel=1e-12)
    assert on_cosine == pytest.approx(0.1 * math.log(factor) + 1)


def test_revised_yarn_is_not_the_original():
    """They agree where a frequency is kept or interpolated whole, and differ by a quarter in between."""
    (revised, _), (original, _) = (
        scaling.frequencies(YARN | {"rope_type": name, "rope_theta": 10_000.0}, 128)
        for name in ("yarn_revised", "yarn")
    )
    ratio = revised / original
    assert ratio[0] == ratio[-1] == pytest.approx(1)
    assert ratio.min() < 0.75 and ratio.max() < 1 + 1e-12


@pytest.mark.parametrize("length", [1, 2048, 2049, 5000, 131_072])
def test_dynamic_is_static_ntk_at_the_length_s_own_factor(length):
    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 2048}
    plain, on_cosine = scaling.frequencies(parameters, 128)
    mine = dynamic_frequencies(parameters, 128, torch.tensor([[length], [1]]))
    assert mine.dtype == torch.float64 and mine.shape == (2, 1, 64)
    factor = max(2.0 * length / 2048 - 1.0, 1.0)
    expected, _ = scaling.frequencies({"rope_type": "ntk", "rope_theta": 1e4, "factor": factor}, 128)
    np.testing.assert_allclose(mine[0, 0].numpy(), expected, rtol=1e-13)
    np.testing.assert_allclose(mine[1, 0].numpy(), plain, rtol=1e-13)
    assert on_cosine == 1.0
    assert scaling.is_dynamic(parameters) and not scaling.is_dynamic(YARN)


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3", "ntk"])
def test_what_a_llama_can_compute_is_told_in_its_terms(name):
    parameters = {"ntk": {"rope_type": "ntk", "factor": 2.0}, **PARAMETERS}[name] | {"rope_theta": 1e4}
    theirs, factor = transformers_frequencies(scaling.as_llama(parameters, 64), 64)
    mine, mine_factor = scaling.frequencies(parameters, 64)
    np.testing.assert_allclose(mine, theirs.double().numpy(), rtol=1e-6)
    assert factor == pytest.approx(mine_factor)


@pytest.mark.parametrize("name", ["yarn_revised", "dynamic"])
def test_what_a_llama_cannot_compute_has_no_terms(name):
    """transformers' ``dynamic`` changes the base under keys that are cached already."""
    assert scaling.as_llama(YARN | {"rope_type": name, "rope_theta": 1e4}, 64) is None


def test_frequencies_carry_more_than_fp32():
    """fp32 frequencies are off by a whole 4e-3 rad at position 131,072: ours come from fp64 arithmetic."""
    mine, _ = scaling.frequencies({"rope_type": "default", "rope_theta": 10_000.0}, 128)
    exact = np.power(np.longdouble(10_000), -np.arange(0, 128, 2, dtype=np.longdouble) / 128)
    assert float(np.max(np.abs(mine - exact) / exact)) < 1e-15


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_is_right_is_not_complained_about(name):
    assert scaling.check(PARAMETERS[name] | {"rope_theta": 10_000.0}) == []


@pytest.mark.parametrize(
    "wrong, field, words",
    [
        ({"rope_type": "yarm"}, "rope_type", "did you mean 'yarn'"),
        ({"rope_type": "su"}, "rope_type", "one of: default, dynamic, linear, llama3, ntk, yarn, yarn_revised"),
        ({"rope_type": "dynamic", "factor": 2.0}, "original_max_position_embeddings", "missing"),
        ({"rope_type": "ntk"}, "factor", "missing"),
        ({"rope_type": "ntk", "factor": 2.0, "beta_fast": 9}, "beta_fast", "not a parameter"),
        ({"rope_type": "linear"}, "factor", "missing"),
        (YARN | {"original_max_position_embeddings": None}, "original_max_position_embeddings", "missing"),
        (YARN | {"facotr": 2.0}, "facotr", "did you mean 'factor'"),
        (YARN | {"mscale": 1.0}, "mscale", "not a parameter"),
        (YARN | {"low_freq_factor": 1.0}, "low_freq_factor", "not a parameter"),
        (YARN | {"factor": "2"}, "factor", "not a number"),
        (YARN | {"factor": True}, "factor", "not a number"),
        (YARN | {"factor": float("nan")}, "factor", "not a number"),
        (YARN | {"factor": 0.5}, "factor", "at least 1"),
        (YARN | {"factor": -2.0}, "factor", "at least 1"),
        (YARN | {"original_max_position_embeddings": 0}, "original_max_position_embeddings", "above 0"),
        (YARN | {"truncate": "no"}, "truncate", "not a boolean"),
        (YARN | {"beta_fast": 1, "beta_slow": 32}, "beta_slow", "below beta_fast"),
        (YARN | {"beta_slow": 40}, "beta_slow", "below beta_fast"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor", "below high_freq_factor"),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta", "above 1"),
        ({"rope_type": "default", "rope_theta": 1}, "rope_theta", "above 1"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(wrong, field, words):
    (problem,) = scaling.check(wrong)
    assert problem.field == f"rope_parameters.{field}"
    assert words in str(problem)


def test_everything_wrong_is_found_at_once():
    problems = scaling.check({"rope_type": "llama3", "factor": 0, "hihg_freq_factor": 2, "low_freq_factor": "x"})
    assert {problem.field.split(".")[1] for problem in problems} == {
        "factor",
        "hihg_freq_factor",
        "high_freq_factor",
        "low_freq_factor",
        "original_max_position_embeddings",
    }
