"""``fire``: the network of a normalised distance, as the paper writes it, at any length."""

import math

import pytest
import torch

from tape_ds import TapeForCausalLM, encodings
from tests.models.helpers import tiny_config, tiny_model

PLACES = [0, 1, 5, 8, 9, 500, 131_072]


def bias_of(layer, places):
    marks = torch.tensor(places)[None, :, None]
    return layer.score_bias((marks, marks), None)


def written_out(network, threshold, n, m, head):
    """f(ln(|c (n - m)| + 1) / (ln(|c max(n, |mu L|)| + 1) + eps)) of one head, one unit at a time."""
    c, mu = network.curvature.item(), network.multiplier.item()
    far = max(n, abs(mu * threshold))
    x = math.log(abs(c * (n - m)) + 1) / (math.log(abs(c * far) + 1) + 1e-6)
    out = network.bias_out[head].item()
    for unit in range(len(network.bias_in)):
        inner = network.weight_in[unit, 0].item() * x + network.bias_in[unit].item()
        out += network.weight_out[head, unit].item() * max(inner, 0.0)
    return out


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1)])
def test_the_bias_is_the_paper_s(signs):
    """Also where training has pushed c or the threshold's multiplier below 0: both count by their size."""
    layer = tiny_model(encoding="fire").model.layers[0].position.double()
    with torch.no_grad():
        layer.network.curvature.mul_(signs[0])
        layer.network.multiplier.mul_(signs[1])
    bias = bias_of(layer, PLACES)
    block = bias.of(slice(None), slice(None))
    assert bias.learned and block.shape == (1, 4, 7, 7)
    for h in range(4):
        for t, n in enumerate(PLACES):
            for s, m in enumerate(PLACES):
                assert block[0, h, t, s].item() == pytest.approx(
                    written_out(layer.network, 8.0, n, m, h), abs=1e-12
                )
                one = bias.element(
                    bias.query_marks[0, 0, t, 0], bias.key_marks[0, 0, s, 0], torch.tensor(h)
                )
                torch.testing.assert_close(one, block[0, h, t, s], rtol=0, atol=2e-6)


@pytest.mark.parametrize("length", [1, 2, 1_000_003])
def test_any_length_is_mapped_to_the_same_interval(length):
    """The network's input is 0 at the query itself and at most 1 at the first token, however far that is."""
    layer = tiny_model(encoding="fire").model.layers[0].position.double()
    network = layer.network
    with torch.no_grad():  # a network that hands its input through
        for weight, value in (
            (network.weight_in, 0.0),
            (network.bias_in, 0.0),
            (network.weight_out, 0.0),
        ):
            weight.fill_(value)
        network.bias_out.zero_()
        network.weight_in[0], network.weight_out[:, 0] = 1.0, 1.0
    block = bias_of(layer, [0, length // 2, length]).of(slice(None), slice(None))[0, 0]
    assert block.diagonal().tolist() == [0.0] * 3
    assert 0 < block[2, 1] < block[2, 0] <= 1 or length < 2
    if length > 8 * 1.1:  # beyond the threshold
        assert block[2, 0].item() == pytest.approx(1, abs=1e-6)


def test_half_precision_parameters_are_computed_with_in_fp32():
    layer = tiny_model(encoding="fire").bfloat16().model.layers[0].position
    block = bias_of(layer, PLACES).of(slice(None), slice(None))
    assert block.dtype == torch.float32
    exact = bias_of(layer.double(), PLACES).of(slice(None), slice(None))
    torch.testing.assert_close(block.double(), exact, rtol=0, atol=2e-6)


def test_the_start_is_the_options():
    options = {"width": 7, "curvature": 0.3, "threshold": 100.0}
    config = tiny_config(encoding="fire", position_options=options, num_hidden_layers=1)
    network = TapeForCausalLM(config).model.layers[0].position.network
    assert network.weight_in.shape == (7, 1) and network.weight_out.shape == (4, 7)
    assert (network.curvature.item(), network.multiplier.item()) == (pytest.approx(0.3), 1.0)
    assert not network.bias_in.any() and not network.bias_out.any()
    assert network.weight_in.std() > 0 and network.weight_out.std() > 0


@pytest.mark.parametrize(
    "name, value",
    [("width", 0), ("curvature", 0), ("curvature", float("nan")), ("threshold", float("inf"))],
)
def test_settings_are_finite_and_above_zero(name, value):
    """YAML's ``.nan`` and ``.inf`` are floats, and every score would be NaN."""
    (problem,) = encodings.check_options("fire", {name: value})
    assert problem.field == f"position_options.{name}"
