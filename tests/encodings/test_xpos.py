"""``xpos``: scores of the distance alone, decaying with it, and refused where the decay leaves the numbers' range."""

import pytest
import torch

from tape_ds.encodings import registry
from tape_ds.encodings.xpos import FARTHEST
from tests.models.helpers import tiny_config, tiny_model, tokens


def scores(places, dtype=torch.float32, **changes):
    """q k' [H, T, T] of the same query and the same key at every place."""
    config = tiny_config("mha", "xpos", **changes)
    encoding, layer = registry.build(config), registry.build_layer(config, 0)
    generator = torch.Generator().manual_seed(1)
    q, k = (
        torch.randn(1, 4, 1, 8, generator=generator).expand(-1, -1, len(places), -1)
        for _ in range(2)
    )
    start = encoding.start(torch.tensor(places)[None, :, None])
    q, k = layer.rotate(q.to(dtype), k.to(dtype), start, None)
    assert q.dtype == k.dtype == dtype
    return (q.float() @ k.float().mT)[0]


def test_the_decay_is_the_paper_s():
    """zeta_j^((n - m) / 2048) on pair j, zeta_j = (2 j + 0.4 K) / 1.4 K: without rotation, a sum over pairs."""
    config = tiny_config("mha", "xpos")
    layer = registry.build_layer(config, 0)
    start = registry.build(config).start(torch.tensor([5000, 10])[None, :, None])
    start[..., :4], start[..., 4:8] = 1.0, 0.0  # no angle
    q, k = torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 8)
    turned_q, turned_k = layer.rotate(q, k, start, None)
    mine = (turned_q[0, :, 0] * turned_k[0, :, 1]).sum(-1)
    decay = torch.tensor(
        [((2 * j + 0.4 * 8) / (1.4 * 8)) ** ((5000 - 10) / 2048) for j in range(4)]
    )
    expected = (q[0, :, 0] * k[0, :, 1] * torch.cat((decay, decay))).sum(-1)
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [64, 65, 8192])
def test_the_window_decides_no_score(window):
    """Positions count from its middle only to keep the factors near 1."""
    places = [0, 7, 20, 50]
    torch.testing.assert_close(
        scores(places, max_position_embeddings=window), scores(places), rtol=1e-5, atol=1e-5
    )


def test_positions_beyond_fp32_are_refused():
    """The factors would become 0 and infinity, and every later logit NaN."""
    model, ids = tiny_model(encoding="xpos"), tokens(1, 2)
    assert model(ids, position_ids=torch.tensor([[0, FARTHEST + 32]])).logits.isfinite().all()
    with pytest.raises(
        ValueError, match=f"position {FARTHEST + 33} is more than {FARTHEST} from the middle"
    ):
        model(ids, position_ids=torch.tensor([[0, FARTHEST + 33]]))


@pytest.mark.parametrize("window", [2 * FARTHEST, 2_000_000])
def test_a_window_of_millions_begins_within_reach(window):
    """Counted from its middle, position 0 of a window of two million had an infinite factor."""
    model = tiny_model(encoding="xpos", max_position_embeddings=window)
    assert model(tokens(1, 9)).logits.isfinite().all()
    with pytest.raises(ValueError, match=f"at most {2 * FARTHEST}"):
        model(tokens(1, 1), position_ids=torch.tensor([[2 * FARTHEST + 1]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_once(dtype):
    """Rotated and scaled queries and keys, each within half a step of the exact ones."""
    config = tiny_config("mha", "xpos")
    start = registry.build(config).start(torch.tensor([3, 900])[None, :, None])
    layer, q, k = registry.build_layer(config, 0), torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 8)
    mine = layer.rotate(q.to(dtype), k.to(dtype), start, None)
    exact = layer.rotate(q.to(dtype).double(), k.to(dtype).double(), start, None)
    for half, truth in zip(mine, exact, strict=True):
        assert (
            (half.double() - truth).abs() <= torch.finfo(dtype).eps / 2 * truth.abs() + 1e-6
        ).all()


def test_fp16_is_refused_where_its_range_ends():
    """bf16 reaches as far as fp32; in fp16 keys 16,000 positions out became infinite."""
    assert scores([0, 9000], torch.float16).isfinite().all()
    with pytest.raises(ValueError, match="leaves float16: use bfloat16 or float32"):
        scores([0, 16_000], torch.float16)
    assert scores([0, 16_000], torch.bfloat16).isfinite().all()
