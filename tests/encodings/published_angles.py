"""Frequencies of every RoPE scaling by its published formula: of pair ``j``, in fp64.

``theta``: the base; ``K``: head size; ``s``: factor; ``window``: tokens before scaling; ``length``: of the text.
"""

import math

BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def default(theta, j, K, s, window, length):
    return theta ** (-2 * j / K)


def linear(theta, j, K, s, window, length):
    """Position interpolation: n / s."""
    return theta ** (-2 * j / K) / s


def ntk(theta, j, K, s, window, length):
    """A base of b s^(K / (K - 2))."""
    return (theta * s ** (K / (K - 2))) ** (-2 * j / K)


def dynamic(theta, j, K, s, window, length):
    """The same with s L / L0 - (s - 1), for texts longer than the window."""
    return ntk(theta, j, K, max(1.0, s * length / window - (s - 1)), window, length)


def kept(theta, j, K, window):
    """YaRN's share of a frequency that stays: 1 for fast waves, 0 for slow ones."""
    d = [K * math.log(window / (2 * math.pi * beta)) / (2 * math.log(theta)) for beta in (32, 1)]
    low, high = max(math.floor(d[0]), 0), min(math.ceil(d[1]), K - 1)
    return 1 - min(max((j - low) / (high - low), 0), 1)


def yarn(theta, j, K, s, window, length):
    """Frequencies blended, as published."""
    own, g = theta ** (-2 * j / K), kept(theta, j, K, window)
    return own / s * (1 - g) + own * g


def yarn_revised(theta, j, K, s, window, length):
    """Wavelengths blended, as PoSE does."""
    g = kept(theta, j, K, window)
    return theta ** (-2 * j / K) / ((1 - g) * s + g)


def llama3(theta, j, K, s, window, length):
    """Waves longer than the window / 1 are interpolated, those shorter than the window / 4 kept."""
    own = theta ** (-2 * j / K)
    wave = 2 * math.pi / own
    if wave > window / BANDS["low_freq_factor"]:
        return own / s
    if wave < window / BANDS["high_freq_factor"]:
        return own
    smooth = (window / wave - BANDS["low_freq_factor"]) / (
        BANDS["high_freq_factor"] - BANDS["low_freq_factor"]
    )
    return (1 - smooth) * own / s + smooth * own


FORMULAS = {
    each.__name__: each for each in (default, linear, ntk, dynamic, yarn, yarn_revised, llama3)
}
