"""Frequencies against transformers' own; wrong ``rope_parameters`` found before a model is built."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tape_ds.encodings import scaling

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
    "yarn, one beta": YARN | {"beta_fast": 1.0, "beta_slow": 1.0},
    "yarn, betas swapped": YARN | {"beta_fast": 1, "beta_slow": 32},
    "llama3": LLAMA3,
    "llama3, one band": LLAMA3 | {"low_freq_factor": 4.0},
    "llama3, bands swapped": LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0},
    "llama3.2": LLAMA3 | {"factor": 32.0},
}


def transformers_frequencies(parameters, head_size):
    config = LlamaConfig(
        hidden_size=head_size * 2,
        num_attention_heads=2,
        head_dim=head_size,
        rope_parameters=dict(parameters),
    )
    if parameters["rope_type"] == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))


@pytest.mark.parametrize("head_size, theta", [(8, 500_000.0), (128, 10_000)])
@pytest.mark.parametrize("name", PARAMETERS)
def test_frequencies_are_transformers(name, head_size, theta):
    """A checkpoint's own scaling must mean here what it means in the library that trained it."""
    parameters = PARAMETERS[name] | {"rope_theta": theta}
    mine, factor = scaling.frequencies(parameters, head_size)
    theirs, their_factor = transformers_frequencies(parameters, head_size)
    assert mine.dtype == np.float64 and mine.shape == (head_size // 2,)
    np.testing.assert_allclose(mine, theirs.double().numpy(), rtol=1e-6)
    assert factor == pytest.approx(their_factor, rel=1e-12)
    assert scaling.check(parameters) == []


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3", "ntk"])
def test_a_llama_computes_the_same_from_its_own_parameters(name):
    parameters = {"ntk": {"rope_type": "ntk", "factor": 2.0}, **PARAMETERS}[name] | {
        "rope_theta": 1e4
    }
    theirs, factor = transformers_frequencies(scaling.as_llama(parameters, 64), 64)
    mine, mine_factor = scaling.frequencies(parameters, 64)
    np.testing.assert_allclose(mine, theirs.double().numpy(), rtol=1e-6)
    assert factor == pytest.approx(mine_factor)


@pytest.mark.parametrize("name", ["yarn_revised", "dynamic"])
def test_a_llama_cannot_compute_these(name):
    """transformers' ``dynamic`` changes the base under keys that are cached already."""
    assert scaling.as_llama(YARN | {"rope_type": name, "rope_theta": 1e4}, 64) is None


@pytest.mark.parametrize(
    "wrong, field, words",
    [
        ({"rope_type": "yarm"}, "rope_type", "did you mean 'yarn'"),
        ({"rope_type": ["yarn"]}, "rope_type", "unknown"),
        ({"rope_type": "dynamic", "factor": 2.0}, "original_max_position_embeddings", "missing"),
        (YARN | {"low_freq_factor": 1.0}, "low_freq_factor", "not a parameter"),
        (YARN | {"attn_factor": 1.0}, "attn_factor", "give the product as attention_factor"),
        (YARN | {"factor": "2"}, "factor", "not a number"),
        (YARN | {"factor": float("nan")}, "factor", "not a number"),
        (YARN | {"factor": 0}, "factor", "at least 1"),
        (
            YARN | {"original_max_position_embeddings": 0},
            "original_max_position_embeddings",
            "above 0",
        ),
        (YARN | {"truncate": "no"}, "truncate", "not a boolean"),
        ({"rope_type": "default", "rope_theta": 1}, "rope_theta", "above 1"),
    ],
)
def test_parameters_of_the_type_within_their_range(wrong, field, words):
    (problem,) = scaling.check(wrong)
    assert problem.field == f"rope_parameters.{field}"
    assert words in str(problem)


def test_a_factor_that_is_asked_for_is_at_least_1():
    """A published model may have less."""
    (problem,) = scaling.check_factor(YARN | {"factor": 0.99})
    assert problem.field == "rope_parameters.factor" and "at least 1" in problem.remedy
    assert (
        scaling.check_factor(YARN | {"factor": 1.0}) == scaling.check(YARN | {"factor": 0.99}) == []
    )


@pytest.mark.parametrize(
    "wrong, field, higher",
    [
        (YARN | {"beta_slow": 33}, "beta_slow", "beta_fast"),
        (LLAMA3 | {"low_freq_factor": 4.1}, "low_freq_factor", "high_freq_factor"),
    ],
)
def test_bounds_that_are_asked_for_are_in_order(wrong, field, higher):
    """A published model may have them so, see above; equal bounds were once refused, which Kimi K2 has."""
    (problem,) = scaling.check_order(wrong)
    assert problem.field == f"rope_parameters.{field}" and f"up to {higher}" in problem.remedy
    assert scaling.check(wrong) == []
    assert scaling.check_order(wrong | {field: wrong.get(higher, 32)}) == []
