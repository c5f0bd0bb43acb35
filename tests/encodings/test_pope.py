"""``pope`` and ``prope``: what their options say, biases by head, angles far out, caches, and what a backward keeps."""

import math

import pytest
import torch

from tape_ds import TapeForCausalLM
from tape_ds.encodings import registry
from tape_ds.encodings.catalogue import PropeOptions
from tape_ds.encodings.pope import polar
from tape_ds.errors import UserError
from tests.models.helpers import rounding, tiny_config, tiny_model, tokens

K = 8


@pytest.mark.parametrize("heads, groups", [("mha", 4), ("gqa", 2), ("mqa", 1)])
def test_each_head_reads_the_bias_of_its_keys(heads, groups):
    """Whichever of the query heads a process has: a half of a group's as well."""
    layer = tiny_model(heads, "pope").model.layers[0].position
    delta, whole = layer.phases.delta.detach().remainder(-2 * math.pi), layer.observe(None)
    assert torch.equal(whole, delta) and whole.shape == (groups, K)
    count = 8 if heads == "mqa" else 4
    for first in range(count):
        for end in range(first + 1, count + 1):
            read = sorted({head * groups // count for head in range(first, end)})
            assert torch.equal(layer.observe(None, slice(first, end)), delta[read])


def test_a_bias_is_read_without_its_whole_turns_and_always_learns():
    """Clamped to the range, as published, it would be lost with the first step upwards from the 0 where it starts."""
    layer = tiny_model("mha", "pope").model.layers[0].position
    with torch.no_grad():
        layer.phases.delta[:] = torch.tensor([-9.0, -2.0, 0.0, 3.0])[:, None]
    read = layer.observe(None)
    assert read[:, 0].tolist() == pytest.approx([2 * math.pi - 9, -2, 0, 3 - 2 * math.pi])
    (gradient,) = torch.autograd.grad(read.sum(), layer.phases.delta)
    assert gradient[:, 0].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("how", ["zero", "uniform"])
def test_biases_start_as_the_option_says(how):
    changes = {
        "position_options": {"delta_init": how},
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    }
    for layer in TapeForCausalLM(tiny_config(encoding="pope", **changes)).model.layers:
        delta = layer.position.phases.delta.detach()
        if how == "zero":
            assert not delta.any()
        else:
            assert -2 * math.pi <= delta.min() < -6 and -0.3 < delta.max() <= 0
            assert delta.mean() == pytest.approx(-math.pi, abs=0.6)


def test_angles_far_out_are_those_of_exact_numbers():
    """In fp32 a position of 10 million would leave an angle nothing but noise."""
    encoding, places = registry.build(tiny_config(encoding="pope")), [0, 1, 131_072, 10_000_000]
    start = encoding.start(torch.tensor(places)[None, :, None])
    assert (
        start.dtype == torch.float64
        and start.shape == (1, 1, 4, K)
        and 0 <= start.min() <= start.max() < 7
    )
    turned = polar(torch.full((1, 1, 4, K), 50.0), start, None)[0, 0] / 50
    for row, place in zip(turned, places, strict=True):
        angles = [place * 10_000 ** (-c / K) for c in range(K)]
        expected = [math.cos(angle) for angle in angles] + [math.sin(angle) for angle in angles]
        assert row.tolist() == pytest.approx(expected, abs=5e-7)


def test_bf16_numbers_are_rounded_once():
    x, start = torch.randn(1, 2, 9, K).bfloat16(), torch.rand(1, 1, 9, K).double()
    assert torch.equal(polar(x, start, None), polar(x.float(), start, None).bfloat16())


def test_position_interpolation_divides_positions():
    rope_parameters = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    model, ids, places = tiny_model(encoding="pope"), tokens(1, 12), torch.arange(12)[None]
    scaled = tiny_model(encoding="pope", rope_parameters=rope_parameters)
    scaled.load_state_dict(model.state_dict())
    with torch.no_grad():
        found = scaled(ids, position_ids=4 * places).logits
        torch.testing.assert_close(found, model(ids).logits, rtol=0, atol=rounding(model, ids))


def test_a_backward_keeps_queries_and_keys_and_nothing_wider():
    """Magnitudes, cosines and sines are fp32, of which there would be several."""
    layer, held = tiny_model("mha", "pope").model.layers[0].position, []
    start = torch.rand(1, 1, 50, K).double()
    q, k = (torch.randn(1, 4, 50, K, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x) or x, lambda x: x):
        layer.rotate(q, k, start, None, layer.observe(None))
    assert not [
        x
        for x in held
        if x.numel() >= q.numel() and x.data_ptr() not in (q.data_ptr(), k.data_ptr())
    ]


NTK = {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    "encoding, changes, field",
    [
        ("pope", {"rope_parameters": NTK}, "rope_parameters.rope_type"),
        ("prope", {"position_options": {"share": 0.2}}, "position_options.share"),
    ],
)
def test_scaled_pairs_and_a_share_of_no_frequency_are_refused(encoding, changes, field):
    with pytest.raises(UserError) as caught:
        tiny_config(encoding=encoding, **changes)
    assert [problem.field for problem in caught.value.problems] == [field]


@pytest.mark.parametrize(
    "rope_type, share, kept",
    [("default", 1.0, 4), ("yarn", 0.9, 3), ("default", 0.5, 2), ("llama3", 0.25, 1)],
)
def test_the_highest_frequencies_turn_as_rope_s_and_the_others_do_not(rope_type, share, kept):
    own = {"rope_type": rope_type, "rope_theta": 10_000.0}
    if rope_type != "default":
        own |= {"factor": 4.0, "original_max_position_embeddings": 32}
    if rope_type == "llama3":
        own |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    places = torch.arange(40)[None, :, None]
    rope = registry.build(tiny_config(encoding="rope", rope_parameters=own))
    prope = registry.build(
        tiny_config(encoding="prope", rope_parameters=own, position_options={"share": share})
    )
    whole, part = rope.start(places), prope.start(places)
    assert torch.equal(part[..., :kept], whole[..., :kept])
    assert torch.equal(part[..., 4 : 4 + kept], whole[..., 4 : 4 + kept])
    assert (part[..., kept:4] == whole[..., :1, :1]).all() and not part[..., 4 + kept :].any()


def test_a_share_is_not_lost_to_rounding():
    """0.58 of 50 frequencies were 28, and the least share that a message gave for 48 was refused again."""
    assert PropeOptions(share=0.58).kept(100) == 29 and PropeOptions(share=0.599).kept(100) == 29
    for head_size in range(2, 257, 2):
        assert PropeOptions(share=float(f"{2 / head_size:g}")).kept(head_size) == 1
    assert [PropeOptions(share=part / 100).kept(200) for part in range(1, 101)] == list(
        range(1, 101)
    )
