"""``repo``: which layers predict, for which heads, in which dtype, and what a real position turns."""

import pytest
import torch

from tape_ds.encodings import registry
from tape_ds.errors import UserError
from tape_ds.kernels import reference
from tests.models.helpers import tiny_config, tiny_model

LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e5,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}


def predicting(layers, **options):
    """Which layers of a model predict."""
    config = tiny_config(encoding="repo", num_hidden_layers=layers, position_options=options)
    return [at for at in range(layers) if registry.build_layer(config, at).predictor is not None]


@pytest.mark.parametrize("layers, first", [(2, 0), (3, 1), (32, 10)])
def test_the_lower_third_of_the_layers_counts(layers, first):
    assert predicting(layers) == list(range(first, layers))


def test_options_choose_the_first_layer_and_the_width():
    assert predicting(16, start_layer=5) == list(range(5, 16))
    assert predicting(4, start_layer=0) == [0, 1, 2, 3] and predicting(4, start_layer=3) == [3]
    for options, width in (({}, 4), ({"width": 7}, 7)):
        predictor = (
            tiny_model(encoding="repo", position_options=options).model.layers[1].position.predictor
        )
        assert [weight.shape for weight in predictor.parameters()] == [
            (width, 32),
            (width, 32),
            (2, width),
        ]


@pytest.mark.parametrize(
    "changes, word",
    [({"position_options": {"start_layer": 3}}, "start_layer"), ({"hidden_size": 4}, "width")],
)
def test_a_model_that_would_predict_nothing_is_refused(changes, word):
    with pytest.raises(UserError, match=word):
        tiny_config(encoding="repo", **changes)
    fitting = {"start_layer": 0, "width": 1}
    assert tiny_config(
        encoding="repo", num_hidden_layers=1, hidden_size=4, position_options=fitting
    )


@pytest.mark.parametrize("rope_parameters", [None, LINEAR, YARN], ids=["default", "linear", "yarn"])
def test_where_positions_are_the_index_it_is_rope(rope_parameters):
    config = tiny_config(encoding="repo", rope_parameters=rope_parameters)
    q, k = torch.randn(2, 4, 50, 8), torch.randn(2, 2, 50, 8)
    index = torch.arange(50)
    start = registry.build(config).start(index[None, :, None])
    below, above = (registry.build_layer(config, at) for at in (0, 2))
    counted = below.rotate(q, k, start, None, None)
    predicted = above.rotate(q, k, start, None, index.float().expand(2, 2, 50))
    for mine, expected in zip(predicted, counted, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=2e-5)


def test_the_gradient_goes_through_cosine_and_sine():
    """As autograd's own through the plain form, for a group of two query heads and their key."""
    layer = registry.build_layer(tiny_config(encoding="repo"), 1)
    q, k, z = (
        torch.randn(2, *shape, dtype=torch.float64) for shape in ((4, 6, 8), (2, 6, 8), (2, 6))
    )
    z.mul_(9).requires_grad_()
    angles = z[..., None] * torch.from_numpy(layer.frequencies.array)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    expected = [reference.rotate(x, table) for x in (q, k)]
    found = layer.rotate(q, k, None, None, z)
    weights = [torch.randn_like(x) for x in found]
    slopes = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(both, weights, strict=True)), z)[0]
        for both in (found, expected)
    ]
    torch.testing.assert_close(found, tuple(expected), rtol=0, atol=1e-14)
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "heads, heads_per_group, processes",
    [("mha", 1, 4), ("gqa", 2, 2), ("gqa", 2, 4), ("mqa", 8, 4)],
)
def test_a_process_predicts_for_the_keys_that_its_queries_read(heads, heads_per_group, processes):
    """A part of a group's query heads has the group's position, whichever process has the others."""
    layer, x = tiny_model(heads, "repo").model.layers[1].position, torch.randn(2, 5, 32)
    whole = layer.observe(x)
    count, groups = layer.heads, layer.heads // heads_per_group
    assert whole.shape == (2, groups, 5)
    own = count // processes
    for process in range(processes):
        some = range(process * own, (process + 1) * own)
        read = sorted({head // heads_per_group for head in some})
        torch.testing.assert_close(layer.observe(x, slice(some.start, some.stop)), whole[:, read])


@pytest.mark.parametrize("autocast", [False, True])
def test_positions_have_the_digits_of_fp32_beside_bf16(autocast):
    """A bf16 position near 300 could only be an even number."""
    position, x = tiny_model(encoding="repo").model.layers[1].position, torch.randn(1, 400, 32) * 30
    if not autocast:
        position, x = position.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        z = position.observe(x)
    assert z.dtype == torch.float32 and z.abs().max() > 300
    assert (z != z.bfloat16()).float().mean() > 0.9
