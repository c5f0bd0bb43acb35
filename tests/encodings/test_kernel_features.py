"""``tape`` from ALiBi: features whose inner products are ALiBi's kernel on average, fixed and finite in evaluation."""

import math

import pytest
import torch

from tape_ds.encodings import registry
from tape_ds.encodings.alibi import slopes
from tape_ds.encodings.kernel_features import FLOOR, draw_grids, features, log_kernel
from tests.models.helpers import tiny_config, tiny_model, tokens


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


def test_each_grid_has_one_entry():
    e_1GTC = features(torch.arange(50)[None], torch.tensor([0.5, 0.1, 0.9]), draw_grids(32, training=True))
    assert e_1GTC.shape == (1, 3, 50, 32) and e_1GTC.dtype == torch.float32
    grids = e_1GTC.unflatten(-1, (8, 4))
    assert ((grids != 0).sum(-1) == 1).all()
    torch.testing.assert_close(grids.abs().sum(-1), torch.full((1, 3, 50, 8), 8**-0.5))


def test_evaluation_has_one_draw_and_training_a_new_one_each():
    before = torch.get_rng_state()
    fixed = draw_grids(64, training=False)
    assert torch.equal(torch.get_rng_state(), before), "evaluation leaves the global generator alone"
    torch.manual_seed(9)
    assert torch.equal(draw_grids(64, training=False), fixed)
    drawn = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        drawn.append(draw_grids(64, training=True))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])


def test_a_state_depends_on_its_position_alone():
    """So that a cached one is the one of the full pass."""
    encoding = registry.build(tiny_config(encoding="tape from alibi")).eval()
    start = encoding.start(torch.tensor([[[3], [70], [5]], [[0], [1], [3]]]))
    assert start.shape == (2, 2, 3, 8)
    assert torch.equal(start[0, :, 0], start[1, :, 2])


@pytest.mark.parametrize("far", [10**6, 10**9])
def test_every_place_has_finite_features(far):
    e_1GTC = features(torch.tensor([[0, 1, far]]), torch.tensor(slopes(8)), draw_grids(64, training=False))
    assert e_1GTC.isfinite().all()
    assert log_kernel(e_1GTC, e_1GTC).isfinite().all()


@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (4, 1)])
def test_the_bias_is_the_bounded_logarithm_of_the_product(heads, groups):
    queries, keys = torch.randn(2, heads, 3, 8), torch.randn(2, groups, 5, 8)
    bias = log_kernel(queries.bfloat16(), keys.bfloat16())
    assert bias.shape == (2, heads, 3, 5) and bias.dtype == torch.float32
    for h in range(heads):
        q, k = queries[:, h].bfloat16().float(), keys[:, h // (heads // groups)].bfloat16().float()
        torch.testing.assert_close(bias[:, h], (q @ k.mT).clamp_min(FLOOR).log())
    assert bias.min() == pytest.approx(math.log(FLOOR))


def test_below_the_floor_there_is_no_gradient():
    """Where the logarithm would be of a negative number, and its slope infinite just above it."""
    query, key = torch.tensor([[[[1.0, 0.0]]]], requires_grad=True), torch.tensor([[[[-0.5, 1.0], [2.0, 1.0]]]])
    log_kernel(query, key).sum().backward()
    assert query.grad.flatten().tolist() == [1.0, 0.5]


def test_layers_share_a_draw_and_the_bias_moves_with_the_state():
    """One start in all layers; from the second on the updates have changed what the logarithm takes."""
    model = tiny_model(encoding="tape from alibi").train()
    starts, biases = [], []
    for layer in model.model.layers:
        carry, bias = layer.position.carry, layer.position.score_bias
        layer.position.carry = lambda start, *others, carry=carry: starts.append(start) or carry(start, *others)
        layer.position.score_bias = lambda *given, bias=bias: biases.append(bias(*given)) or biases[-1]
    model(tokens(1, 9))
    assert all(start is starts[0] for start in starts)
    assert [bias.learned for bias in biases] == [False, True, True]
    first, second = (bias.of(slice(None), slice(None)) for bias in biases[:2])
    assert (first - second).abs().max() > 0.05


@pytest.mark.parametrize(
    "changes, field, words",
    [
        ({"head_dim": 6}, "head_dim", "multiple of 4"),
        ({"position_options": {"start": "alibi", "form": "vector"}}, "position_options.form", "give tensorial"),
    ],
)
def test_what_this_start_cannot_do(changes, field, words):
    with pytest.raises(ValueError, match=rf"(?s){field}.*{words}"):
        tiny_config(encoding="tape from alibi", **changes)
