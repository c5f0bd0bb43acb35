"""Work, traffic and time against sums by hand, and how choices move them."""

import pytest

from tape_ds.distributed.layout import Engine
from tape_ds.models import flops
from tape_ds.planning import roofline
from tape_ds.planning.prediction import Plan
from tape_ds.planning.shape import TrainedShape
from tests.planning.helpers import FROZEN, job, published

UNIT = 2 * 32 * 4096 * 8192 / 2
"""FLOP per token of one product of attention."""
LINEAR = 2 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)
HEAD = 2 * 4096 * 32_000
PLAIN = Engine(persistence=0)


def work(*given, **changes):
    return roofline.work(job(*given, **changes))


def sent(asked):
    return {each.kind: each for each in roofline.traffic(asked, asked.gpu)}


@pytest.mark.parametrize("encoding", ["rope", "tape", "fire", "fox", "pope"])
@pytest.mark.parametrize(
    "trained", [TrainedShape.everything(), TrainedShape(norms=True)], ids=["full", "norms"]
)
def test_model_flops_are_those_that_utilisation_goes_by(encoding, trained):
    asked = job(encoding, trained)
    config = published("llama2-7b", position_encoding=encoding)
    share = asked.trained_parameters / asked.parameters
    assert roofline.work(asked).model == pytest.approx(
        flops.training_flops_per_token(config, 8192, share), rel=1e-9
    )


def test_attention_of_a_wide_value():
    """Rotary: 2 and 5 products; by halves twice as many; by one kernel 3 and 7 (docs/kernels.md). The last layer
    carries nothing by one kernel. PoPE's queries and keys are twice as wide, and values padded to them."""
    assert (
        work("rope").attention == 7 * UNIT
        and work().attention == work("pope").attention == 14 * UNIT
    )
    assert work(wide_attention=True).attention == pytest.approx((7 + 3 * 31 / 32) * UNIT)


@pytest.mark.parametrize("documents", [1, 16])
def test_packed_rows_cost_what_their_documents_do_in_as_many_calls(documents):
    """Documents of 8,192 / n tokens see each a n-th of the keys; nothing else of a step follows their number."""
    plain, packed = Plan(job()), Plan(job(documents=documents))
    assert roofline.work(packed.job).attention == 14 * UNIT / documents
    assert roofline.work(packed.job).model == pytest.approx(
        roofline.work(plain.job).model, rel=1e-12
    )
    assert (packed.step.linear, packed.step.memory_bound, packed.step.waiting) == pytest.approx(
        (plain.step.linear, plain.step.memory_bound, plain.step.waiting)
    )


@pytest.mark.parametrize("gpu, slower", [("h100-80", 0.53 / 0.31), ("a100-80", 1.0)])
def test_packed_rows_run_at_flash_attention_2_s_rate(gpu, slower):
    """torch's call for packed sequences has no other kernel, where sequences without borders get cuDNN's on Hopper."""
    plain, packed = (Plan(job(gpu=gpu, documents=each)).step.attention for each in (None, 1))
    assert packed / plain == pytest.approx(slower)


def test_a_frozen_base_has_no_gradients_of_its_weights():
    assert work("rope").linear == 3 * (LINEAR + HEAD)
    assert work("rope", trained=TrainedShape(norms=True)).linear == 2 * (LINEAR + HEAD)


@pytest.mark.parametrize(("policy", "linear", "attention"), [(1, 1, 1), ("selective", 1, 0)])
def test_what_is_computed_again(policy, linear, attention):
    plain, again = work("rope"), work("rope", checkpoint_layers=policy)
    assert again.linear - plain.linear == linear * LINEAR
    assert again.attention - plain.attention == attention * 2 * UNIT and again.model == plain.model


def test_tiles_are_computed_once_more():
    plain, tiled = work(checkpoint_layers=1), work(checkpoint_layers=1, mlp_tiles=8)
    assert tiled.linear - plain.linear == 2 * 32 * 3 * 4096 * 11008


def test_sequence_parallelism_sends_half_as_much_again_as_with_rope():
    """q, k and the wide value in, the wide output back: 6 columns for 4 (Ulysses, arXiv:2309.14509)."""
    kind = "heads for tokens"
    rope, tape = (sent(job(encoding, sequence=8))[kind] for encoding in ("rope", "tape"))
    assert tape.bytes == pytest.approx(1.5 * rope.bytes)
    # layers, passes, accumulation
    assert rope.bytes == pytest.approx(32 * 2 * 64 * 4 * 1024 * 4096 * 2 * 7 / 8)


def test_zero_3_gathers_all_weights_twice_and_zero_1_what_is_trained_once():
    everything = job().parameters * 2 * 7 / 8
    three, one = sent(job(zero=3, engine=PLAIN)), sent(job(zero=1))
    assert three["weights gathered"].bytes == pytest.approx(8 * 2 * everything)  # 8 micro-steps
    assert one["new weights gathered"].bytes == pytest.approx(everything)
    assert one["gradients reduced"].bytes == pytest.approx(2 * everything)
    assert sum(each.bytes for each in sent(job(zero=1, trained=FROZEN)).values()) < 0.1e9


@pytest.mark.parametrize(
    ("layout", "link", "speed"),
    [
        ({"world": 8}, "node", 450e9),
        ({"world": 16}, "network", 400e9),
        ({"world": 16, "tensor": 8}, "network", 50e9),
        ({"world": 8, "tensor": 8}, None, None),
    ],
)
def test_a_node_sends_through_all_its_adapters_at_once(layout, link, speed):
    """16 GPUs of 50 GB/s each: 400 GB/s to the other node; with tensor parallelism 8 each has its own 50."""
    found = sent(job(zero=1, **layout)).get("gradients reduced")
    assert (found.link if found else None) == link
    assert found is None or found.bytes / found.seconds == pytest.approx(0.8 * speed)


def test_tensor_parallelism_gathers_and_adds_up_hidden_states_and_exchanges_position_states():
    """13B by 8: twice each in a block, forward, again and backward, and around embedding and head. Position states of
    an eighth of the tokens go there and back; the first block has none."""
    cut = {"model": "llama2-13b", "tensor": 8, "zero": 1, "checkpoint_layers": 1, "global_batch": 1}
    rope, tape = sent(job("rope", **cut)), sent(job(**cut))
    hidden = 8192 * 5120 * 2 * 7 / 8
    assert rope["hidden states gathered, added up"].bytes == pytest.approx(
        (40 * 3 * 4 + 4) * hidden
    )
    assert (
        tape["position states exchanged"].bytes == pytest.approx(39 * 3 * 2 * hidden / 8)
        and len(rope) == 1
    )


def test_fused_norms_read_and_write_less():
    """28 passes over the hidden columns of each block, three times where nothing is computed again; the gated product
    stays as it is."""
    own, torch_s = (
        roofline.memory_bound(job("rope", fused=False, fused_norms=fused))
        for fused in (True, False)
    )
    assert torch_s - own == 28 * 4096 * 32 * 3 * 2
    assert own - roofline.memory_bound(job("rope")) == 2 * 11_008 * 32 * 3 * 2


def test_short_contexts_are_forwards_alone():
    """Contexts of 256 tokens: attention over a thirty-second of the length, linear maps as often as tokens are read,
    and the output head for the targets alone."""
    plain, twice = (job("rope", trained=FROZEN, short=short) for short in (None, (192, 64)))
    model, read = plain.model, 127 - 1 - 2  # 124 short contexts of 256 tokens
    again = read * 256 / 8192
    assert twice.read_again == again
    more = roofline.work(twice).linear - roofline.work(plain).linear
    blocks = 2 * model.layers * sum(a * b for a, b in model.linears.values())
    assert more == pytest.approx(
        blocks * again + 2 * model.hidden * model.vocabulary * read * 64 / 8192
    )
    attention = roofline.work(twice).attention - roofline.work(plain).attention
    assert attention == pytest.approx(2 * model.layers * model.query * 256 * again)
    assert roofline.work(twice).model == roofline.work(plain).model, (
        "MFU counts what one reading needs"
    )
