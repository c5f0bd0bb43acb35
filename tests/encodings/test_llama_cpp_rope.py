"""RoPE between a GGUF file's keys and ``rope_parameters``, there and back, and what llama.cpp computes otherwise."""

import math

import numpy as np
import pytest

from tape_ds.encodings import llama_cpp_rope, scaling
from tape_ds.encodings.llama_cpp_rope import Keys, refusals, to_keys, to_parameters

WINDOW = "original_max_position_embeddings"
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, WINDOW: 8192}
BOUNDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, WINDOW: 8192, **BOUNDS}


def divisors_of(parameters, head_size):
    """As llama.cpp's converter computes them, in fp32."""
    plain, _ = scaling.frequencies({**parameters, "rope_type": "default"}, head_size)
    return (np.float32(plain) / np.float32(scaling.frequencies(parameters, head_size)[0])).astype(
        np.float32
    )


@pytest.mark.parametrize(
    "parameters",
    [
        PLAIN,
        PLAIN | {"rope_theta": 5e6},
        LINEAR,
        YARN,
        YARN | {"attention_factor": 1.0},
        YARN | {"attention_factor": 1.25},
        LLAMA3,
        LLAMA3 | {"factor": 32.0},
        LLAMA3 | {WINDOW: 256, "rope_theta": 1e4},
        LLAMA3 | {WINDOW: 2048, "factor": 4.0, "low_freq_factor": 2.0, "high_freq_factor": 6.0},
        LLAMA3 | {WINDOW: 100_000, "rope_theta": 1e4},  # no frequency is scaled in full
    ],
)
def test_what_is_written_is_read_again(parameters):
    keys = to_keys(parameters, 128)
    assert to_parameters(keys, 128, 65_536) == (parameters, [])


def test_keys_are_those_that_llama_cpp_reads():
    """Its converter writes yarn_attn_factor, which nothing reads; attn_factor multiplies YaRN's usual factor."""
    assert to_keys(LINEAR, 64).values == {
        "freq_base": 1e4,
        "scaling.type": "linear",
        "scaling.factor": 4.0,
    }
    yarn = {
        "freq_base": 1e6,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 8192,
    }
    assert to_keys(YARN, 64).values == yarn
    own = to_keys(YARN | {"attention_factor": 1.0}, 64).values
    assert own == yarn | {"scaling.attn_factor": pytest.approx(1 / (0.1 * math.log(4) + 1))}
    base = to_keys({"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}, 8).values
    assert base == {"freq_base": pytest.approx(1e4 * 2 ** (8 / 6))}
    assert np.allclose(to_keys(LLAMA3, 128).divisors, divisors_of(LLAMA3, 128), rtol=1e-5)


@pytest.mark.parametrize("theta", [1e4, 5e5, 8e6])
@pytest.mark.parametrize("window", [64, 256, 2048, 8192, 131_072])
@pytest.mark.parametrize("head_size", [32, 64, 128])
def test_divisors_of_any_window_are_read(theta, window, head_size):
    """Only those of 8,192 tokens were: a llama3 extension of another base could not come back."""
    parameters = LLAMA3 | {"rope_theta": theta, WINDOW: window}
    divisors = divisors_of(parameters, head_size)
    found, _ = to_parameters(Keys({"freq_base": theta}, divisors), head_size, 8 * window)
    expected, _ = scaling.frequencies(parameters, head_size)
    assert found["rope_type"] == "llama3" or np.allclose(divisors, 1)
    assert np.allclose(scaling.frequencies(found, head_size)[0], expected, rtol=1e-4)


def test_other_divisors_are_refused():
    for divisors in ([1.0, 2.5, 4.0, 4.0], [2.0, 2.0, 1.0, 8.0]):
        with pytest.raises(ValueError, match="not Llama 3's"):
            to_parameters(Keys({}, np.array(divisors)), 8, 1024)
    assert to_parameters(Keys({}, np.ones(4)), 8, 1024) == (PLAIN, []), (
        "some converters write them all the same"
    )


def test_files_of_others_are_read_as_llama_cpp_computes_them():
    yarn = {
        "freq_base": 1e6,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 8192,
    }
    betas = {"scaling.yarn_beta_fast": 16.0, "scaling.attn_factor": 0.5}
    found, _ = to_parameters(Keys(yarn | betas), 64, 32_768)
    attention = pytest.approx(0.5 * (0.1 * math.log(4) + 1), rel=1e-6)
    assert found == YARN | {"beta_fast": 16.0, "attention_factor": attention}
    # llama.cpp's type is linear by default
    for old in (
        {"scaling.factor": 4.0},
        {"scale_linear": 4.0},
    ):
        assert to_parameters(Keys(old), 64, 1024) == (LINEAR, [])
    assert to_parameters(Keys({"scaling.type": "none", "scaling.factor": 4.0}), 64, 1024) == (
        PLAIN,
        [],
    )
    without = {name: value for name, value in yarn.items() if "original" not in name}
    found, _ = to_parameters(Keys(without), 64, 32_768)
    assert found == {name: value for name, value in YARN.items() if name != WINDOW}


def test_keys_of_the_converter_are_read_or_named():
    """A file with yarn_attn_factor or yarn_log_multiplier was unpacked with them, and then refused against a folder
    of the cache."""
    yarn = {
        "freq_base": 1e6,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 8192,
    }
    found, notes = to_parameters(Keys(yarn | {"scaling.yarn_attn_factor": 1.0}), 64, 32_768)
    assert found == YARN | {"attention_factor": 1.0} and not notes
    quiet = {
        "scaling.finetuned": True,
        "scaling.yarn_ext_factor": 1.0,
        "scaling.yarn_log_multiplier": 0.0,
    }
    assert to_parameters(Keys(yarn | quiet), 64, 32_768) == (YARN, [])
    found, notes = to_parameters(Keys(yarn | {"scaling.yarn_log_multiplier": 0.1}), 64, 32_768)
    assert found == YARN and notes == ["yarn_log_multiplier = 0.1 is not read, as in llama.cpp"]
    both = {"scaling.attn_factor": 0.5, "scaling.yarn_attn_factor": 1.0}
    found, notes = to_parameters(Keys(yarn | both), 64, 32_768)
    assert found["attention_factor"] == pytest.approx(0.569315) and "attn_factor says" in notes[0]


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"scaling.type": "longrope"}, "longrope"),
        ({"scaling.type": "spiral"}, "'spiral' is unknown"),
        ({"scaling.alpha": 2.0}, "rope.scaling.alpha = 2.0 is unknown"),
        (
            {"scaling.type": "linear", "scaling.factor": 2.0, "scaling.attn_factor": 0.5},
            "without YaRN",
        ),
    ],
)
def test_what_cannot_be_read_is_named(values, wrong):
    with pytest.raises(ValueError, match=wrong):
        to_parameters(Keys(values), 64, 1024)


def test_divisors_and_another_scaling_are_refused():
    values = {"scaling.type": "yarn", "scaling.factor": 2.0}
    with pytest.raises(ValueError, match="at once"):
        to_parameters(Keys(values, divisors_of(LLAMA3, 64)), 64, 1024)


@pytest.mark.parametrize(
    ("parameters", "architecture", "refused"),
    [
        (PLAIN, "qwen3", []),
        (LINEAR, "qwen2", []),
        (
            YARN | {"beta_fast": 32.0, "beta_slow": 1, "truncate": True, "attention_factor": 1.0},
            "llama",
            [],
        ),
        (LLAMA3, "llama", []),
        (LLAMA3, "qwen3", ["rope_type"]),
        (YARN | {"truncate": False}, "llama", ["truncate"]),
        (
            YARN | {"beta_fast": 8, "beta_slow": 2, "truncate": False},
            "llama",
            ["truncate", "beta_fast", "beta_slow"],
        ),
        (
            {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, WINDOW: 256},
            "llama",
            ["rope_type"],
        ),
        (YARN | {"rope_type": "yarn_revised"}, "llama", ["rope_type"]),
    ],
)
def test_what_llama_cpp_would_compute_otherwise(parameters, architecture, refused):
    assert [name for name, _, _ in refusals(parameters, architecture)] == refused
    assert llama_cpp_rope.THETA == 10_000
