"""``alibi``: the published slopes for every number of heads, and distances that stay exact."""

import math

import pytest
import torch

from tape_ds.encodings import registry
from tape_ds.encodings.alibi import slopes
from tests.models.helpers import tiny_config


def published_slopes(heads):
    """The rule of the authors' code: a start that is its own ratio; other numbers are filled up from twice as many."""

    def of_power(power):
        start = 2 ** (-(2 ** -(math.log2(power) - 3)))
        return [start * start**i for i in range(power)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    lower = 2 ** math.floor(math.log2(heads))
    return of_power(lower) + published_slopes(2 * lower)[::2][: heads - lower]


@pytest.mark.parametrize("heads", [*range(1, 17), 40])
def test_slopes_are_the_published_ones(heads):
    assert slopes(heads) == pytest.approx(published_slopes(heads), rel=1e-12)
    assert len(set(slopes(heads))) == heads


def bias_of(name, places, heads):
    """The bias of every query and key at these places."""
    config = tiny_config(heads, name)
    places = torch.tensor(places)[None, :, None]
    if config.position_encoding.startswith("bipe"):
        places = torch.cat((places, torch.zeros_like(places), torch.zeros_like(places)), dim=-1)
    return registry.build_layer(config, 0).score_bias((places, places), None)


@pytest.mark.parametrize(
    "name, steepness, heads", [("alibi", 1, "gqa"), ("alibi", 1, "mqa"), ("bipe_alibi", 96, "mha")]
)
def test_the_bias_is_the_slope_times_the_distance(name, steepness, heads):
    """In blocks, and one element at a time, as FlexAttention computes them; neighbours at 100 million are 1 apart."""
    places = [0, 1, 5, 5, 131_072, 7, 100_000_000, 100_000_001]
    bias = bias_of(name, places, heads)
    block = bias.of(slice(None), slice(None))
    count = tiny_config(heads).num_attention_heads
    assert block.shape == (1, count, 8, 8) and block.dtype == torch.float32
    assert not bias.learned
    for h, slope in enumerate(published_slopes(count)):
        for t, n in enumerate(places):
            for s, m in enumerate(places):
                assert block[0, h, t, s] == pytest.approx(steepness * slope * (m - n), rel=1e-6)
                marks = bias.query_marks[0, 0, t, 0], bias.key_marks[0, 0, s, 0]
                assert bias.element(*marks, torch.tensor(h)) == block[0, h, t, s]
