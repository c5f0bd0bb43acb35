"""``tape`` from ALiBi: features whose inner products are ALiBi's kernel on average, fixed and finite in evaluation."""

import math

import pytest
import torch

from tape_ds.encodings.alibi import slopes
from tape_ds.encodings.kernel_features import FLOOR, draw_grids, features, log_kernel
from tests.models.helpers import tiny_config


def test_inner_products_are_alibi_s_kernel_on_average():
    """exp(-slope |n - m|), from 20,000 grids: their mean's standard error is below 0.007."""
    grids = draw_grids(4 * 20_000, training=True)
    slope = torch.tensor([1.0, 0.25])
    places = torch.tensor([[1000, 1001, 1002, 1004, 1008, 1020]])
    e_1GTC = features(places, slope, grids).double()  # exact sums of 80,000 products
    products_GTT = (e_1GTC @ e_1GTC.mT)[0].float()
    distances = (places[0, :, None] - places[0]).abs()
    expected = torch.exp(-slope[:, None, None] * distances)
    torch.testing.assert_close(products_GTT, expected, rtol=0, atol=0.03)
    assert (products_GTT.diagonal(dim1=1, dim2=2) - 1).abs().max() < 1e-6


def test_chance_meetings_cancel():
    """Without signs, distant tokens would share one of four buckets in every fourth grid, and never be forgotten."""
    grids = draw_grids(4 * 20_000, training=True)
    e_1GTC = features(torch.tensor([[0, 10_000]]), torch.tensor([1.0]), grids)
    met = (e_1GTC[0, 0, 0] * e_1GTC[0, 0, 1] != 0).float().sum() / 20_000
    assert met == pytest.approx(0.25, abs=0.02)
    assert float(e_1GTC[0, 0, 0] @ e_1GTC[0, 0, 1]) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (4, 1)])
def test_the_bias_is_the_bounded_logarithm_of_the_product(heads, groups):
    queries, keys = torch.randn(2, heads, 3, 8), torch.randn(2, groups, 5, 8)
    bias = log_kernel(queries.bfloat16(), keys.bfloat16())
    assert bias.shape == (2, heads, 3, 5) and bias.dtype == torch.float32
    for h in range(heads):
        q, k = queries[:, h].bfloat16().float(), keys[:, h // (heads // groups)].bfloat16().float()
        torch.testing.assert_close(bias[:, h], (q @ k.mT).clamp_min(FLOOR).log())
    far = features(
        torch.tensor([[0, 1, 10**9]]), torch.tensor(slopes(8)), draw_grids(64, training=False)
    )
    assert log_kernel(far, far).min() == pytest.approx(math.log(FLOOR))


def test_below_the_floor_there_is_no_gradient():
    """Where the logarithm would be of a negative number, and its slope infinite just above it."""
    query, key = (
        torch.tensor([[[[1.0, 0.0]]]], requires_grad=True),
        torch.tensor([[[[-0.5, 1.0], [2.0, 1.0]]]]),
    )
    log_kernel(query, key).sum().backward()
    assert query.grad.flatten().tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"head_dim": 6}, "head_dim"),
        ({"position_options": {"start": "alibi", "form": "vector"}}, "position_options.form"),
    ],
)
def test_head_sizes_and_forms_without_pairs_are_refused(changes, field):
    with pytest.raises(ValueError, match=field):
        tiny_config(encoding="tape from alibi", **changes)
