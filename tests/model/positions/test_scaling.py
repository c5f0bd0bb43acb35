"""Frequencies against transformers' own, and every wrong ``rope_parameters`` found before a model is built."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tape_ds.model.positions import scaling

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
    assert {parameters["rope_type"] for parameters in PARAMETERS.values()} == set(scaling.available())


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
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type", "one of: default, linear, llama3, yarn"),
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
