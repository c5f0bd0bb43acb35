"""Every RoPE scaling, through the encoding, against its formula, a frequency at a time.

Factors, head sizes and positions are those of extension: 2, 4 and 8 times a window, and places far after it.
"""

import math

import numpy as np
import pytest
import torch

from tape_ds.encodings import registry, scaling
from tests.encodings.published_angles import BANDS, FORMULAS
from tests.models.helpers import tiny_config

WINDOW = 2048
PLACES = (0, 1, 2047, 2048, 9_001, 131_071, 1_000_003)


def started(name, factor, head_size, theta):
    """Cosines and sines [T, K] that the model starts from, for a text of ``factor`` windows."""
    given = {
        "rope_type": name,
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": WINDOW,
    }
    given |= BANDS if name == "llama3" else {}
    given = {
        key: value for key, value in given.items() if name != "default" or key.startswith("rope_")
    }
    encoding = registry.build(
        tiny_config(encoding="rope", head_dim=head_size, rope_parameters=given)
    )
    places = torch.tensor(PLACES)[None, :, None]
    if name == "dynamic":
        places = torch.cat((places, torch.full_like(places, int(factor * WINDOW))), dim=-1)
    return encoding.start(places)[0, 0].numpy()


def test_every_scaling_has_its_formula():
    assert set(FORMULAS) == set(scaling.available())


@pytest.mark.parametrize(
    "factor, head_size, theta",
    [(2.0, 16, 10_000.0), (4.0, 80, 500_000.0), (8.0, 64, 500_000.0), (8.0, 128, 10_000.0)],
)
@pytest.mark.parametrize("name", FORMULAS)
def test_angles_are_the_formula_s(name, factor, head_size, theta):
    """To the rounding of fp32, a million tokens out: fp64 of this size leaves 1e-9 of an angle."""
    mine = started(name, factor, head_size, theta)
    length = int(factor * WINDOW)
    w = np.array(
        [FORMULAS[name](theta, j, head_size, factor, WINDOW, length) for j in range(head_size // 2)]
    )
    angles = np.array(PLACES, dtype=np.float64)[:, None] * w
    on_cosine = 0.1 * math.log(factor) + 1 if name.startswith("yarn") else 1.0
    expected = np.concatenate((np.cos(angles), np.sin(angles)), -1) * on_cosine
    np.testing.assert_allclose(mine, expected, rtol=0, atol=2e-7)
