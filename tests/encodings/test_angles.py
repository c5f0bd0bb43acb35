"""Every RoPE scaling, through the encoding, against its formula (restated a frequency at a time) and transformers.

Factors, head sizes and positions are those of extension: 2, 4 and 8 times a window, and places far behind it.
"""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tape_ds.encodings import registry, scaling
from tests.models.helpers import tiny_config

WINDOW = 2048
PLACES = (0, 1, 2047, 2048, 9_001, 131_071, 1_000_003)
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
TRANSFORMERS = ("default", "linear", "dynamic", "yarn", "llama3")


def linear(theta, j, K, s, length):
    """Position interpolation: n / s."""
    return theta ** (-2 * j / K) / s


def default(theta, j, K, s, length):
    return theta ** (-2 * j / K)


def ntk(theta, j, K, s, length):
    """A base of b s^(K / (K - 2))."""
    return (theta * s ** (K / (K - 2))) ** (-2 * j / K)


def dynamic(theta, j, K, s, length):
    """The same with s L / L0 - (s - 1), for texts longer than the window."""
    return ntk(theta, j, K, max(1.0, s * length / WINDOW - (s - 1)), length)


def kept(theta, j, K):
    """YaRN's share of a frequency that stays: 1 for fast waves, 0 for slow ones."""
    d = [K * math.log(WINDOW / (2 * math.pi * beta)) / (2 * math.log(theta)) for beta in (32, 1)]
    low, high = max(math.floor(d[0]), 0), min(math.ceil(d[1]), K - 1)
    return 1 - min(max((j - low) / (high - low), 0), 1)


def yarn(theta, j, K, s, length):
    """Frequencies blended, as published."""
    own, g = theta ** (-2 * j / K), kept(theta, j, K)
    return own / s * (1 - g) + own * g


def yarn_revised(theta, j, K, s, length):
    """Wavelengths blended, as PoSE does."""
    return theta ** (-2 * j / K) / ((1 - kept(theta, j, K)) * s + kept(theta, j, K))


def llama3(theta, j, K, s, length):
    """Waves longer than the window / 1 are interpolated, those shorter than the window / 4 kept."""
    own = theta ** (-2 * j / K)
    wave = 2 * math.pi / own
    if wave > WINDOW / BANDS["low_freq_factor"]:
        return own / s
    if wave < WINDOW / BANDS["high_freq_factor"]:
        return own
    smooth = (WINDOW / wave - BANDS["low_freq_factor"]) / (BANDS["high_freq_factor"] - BANDS["low_freq_factor"])
    return (1 - smooth) * own / s + smooth * own


FORMULAS = {each.__name__: each for each in (default, linear, ntk, dynamic, yarn, yarn_revised, llama3)}


def parameters_of(name, factor, theta):
    given = {"rope_type": name, "rope_theta": theta, "factor": factor, "original_max_position_embeddings": WINDOW}
    given |= BANDS if name == "llama3" else {}
    return {key: value for key, value in given.items() if name != "default" or key.startswith("rope_")}


def started(parameters, head_size, places, length):
    """Cosines and sines [T, K] that the model starts from, for a text of ``length`` tokens."""
    encoding = registry.build(tiny_config(encoding="rope", head_dim=head_size, rope_parameters=parameters))
    places = torch.tensor(places)[None, :, None]
    if scaling.is_dynamic(parameters):
        places = torch.cat((places, torch.full_like(places, length)), dim=-1)
    return encoding.start(places)[0, 0].numpy()


def test_every_scaling_is_here():
    assert set(FORMULAS) == set(scaling.available())


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("head_size", [16, 64, 80, 128])
@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("name", FORMULAS)
def test_angles_are_the_formula_s(name, factor, head_size, theta):
    """To the rounding of fp32, a million tokens out: fp64 of this size leaves 1e-9 of an angle."""
    length = int(factor * WINDOW)
    mine = started(parameters_of(name, factor, theta), head_size, PLACES, length)
    w = np.array([FORMULAS[name](theta, j, head_size, factor, length) for j in range(head_size // 2)])
    angles = np.array(PLACES, dtype=np.float64)[:, None] * w
    on_cosine = 0.1 * math.log(factor) + 1 if name.startswith("yarn") else 1.0
    np.testing.assert_allclose(
        mine, np.concatenate((np.cos(angles), np.sin(angles)), -1) * on_cosine, rtol=0, atol=2e-7
    )


@pytest.mark.parametrize("head_size", [16, 64, 80, 128])
@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_angles_are_transformers(name, factor, head_size):
    """Its frequencies are fp32: within the window and to the factor's end, what they leave is some 1e-7 of an angle."""
    parameters, length = parameters_of(name, factor, 10_000.0), int(factor * WINDOW)
    config = LlamaConfig(
        hidden_size=head_size * 2,
        num_attention_heads=2,
        head_dim=head_size,
        max_position_embeddings=WINDOW,
        rope_parameters=dict(parameters),
    )
    if name == "default":
        theirs, on_cosine = 10_000.0 ** (-torch.arange(0, head_size, 2).float() / head_size), 1.0
    else:
        theirs, on_cosine = ROPE_INIT_FUNCTIONS[name](config, torch.device("cpu"), seq_len=length)
    places = (0, 1, 2047, 2048, length - 1)
    angles = np.array(places, dtype=np.float64)[:, None] * theirs.double().numpy()
    expected = np.concatenate((np.cos(angles), np.sin(angles)), -1) * on_cosine
    np.testing.assert_allclose(started(parameters, head_size, places, length), expected, rtol=0, atol=3e-7 * length)


@pytest.mark.parametrize("name", sorted(set(FORMULAS) - {"default"}))
def test_scalings_differ_from_plain_angles_and_from_each_other(name):
    """A test above would pass for a type that is taken for another with the same formula."""
    mine = started(parameters_of(name, 4.0, 10_000.0), 64, PLACES, 4 * WINDOW)
    for other in FORMULAS.keys() - {name}:
        theirs = started(parameters_of(other, 4.0, 10_000.0), 64, PLACES, 4 * WINDOW)
        assert np.abs(mine - theirs).max() > 0.05, other
