"""``sincos``: the waves of the original transformer, added to the embeddings and rounded once."""

import math

import pytest
import torch

from tape_ds.encodings import registry
from tests.models.helpers import tiny_config


def waves(place, width):
    """Channel 2i: the sine of n / 10000^(2i / D); channel 2i + 1: its cosine."""
    angles = [place / 10_000 ** (2 * (channel // 2) / width) for channel in range(width)]
    return [
        math.cos(angle) if channel % 2 else math.sin(angle) for channel, angle in enumerate(angles)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_waves_are_added_once(dtype):
    """Any jumps and rows; in bf16 the published code computed the waves themselves in 8 bits."""
    encoding = registry.build(tiny_config(encoding="sincos"))
    places = torch.tensor([[0, 1, 500], [131_071, 3, 3]])
    x = torch.randn(2, 3, 32).to(dtype)
    mine = encoding.embed(x, places[..., None])
    expected = (
        x.double()
        + torch.tensor([[waves(place, 32) for place in row] for row in places.tolist()]).double()
    )
    assert mine.dtype == dtype
    step = torch.finfo(torch.float32).eps if dtype == torch.float64 else torch.finfo(dtype).eps
    assert ((mine.double() - expected).abs() <= step / 2 * expected.abs() + 2e-7).all()


def test_one_row_of_places_is_broadcast_over_the_batch():
    encoding = registry.build(tiny_config(encoding="sincos"))
    x = torch.zeros(3, 4, 32)
    mine = encoding.embed(x, torch.arange(4)[None, :, None])
    assert mine.shape == (3, 4, 32) and torch.equal(mine[0], mine[2])
