"""Volumes and links against sums by hand."""

import pytest

from tape_ds.planning import traffic
from tape_ds.planning.layout import Engine
from tests.planning.helpers import FROZEN, job


def sent(asked):
    """Kind -> what is sent."""
    return {each.kind: each for each in traffic.of(asked)}


def test_sequence_parallelism_sends_half_as_much_again_as_with_rope():
    """q, k and the wide value in, the wide output back: 6 columns for 4 (Ulysses, arXiv:2309.14509)."""
    kind = "heads for tokens"
    rope, tape = (sent(job(encoding, sequence=8))[kind] for encoding in ("rope", "tape"))
    assert tape.bytes == pytest.approx(1.5 * rope.bytes)
    assert rope.bytes == pytest.approx(32 * 2 * 64 * 4 * 1024 * 4096 * 2 * 7 / 8)  # layers, passes, accumulation


def test_fewer_key_heads_than_ranks_are_sent_several_times():
    kind = "heads for tokens"
    assert (
        sent(job(model="llama2-70b", encoding="rope", gpus=16, sequence=16))[kind].bytes
        > sent(job(model="llama2-70b", encoding="rope", gpus=16, sequence=8))[kind].bytes * 0.5
    )


def test_zero_3_gathers_all_weights_twice_and_zero_1_what_is_trained_once():
    everything = job(engine=Engine(persistence=0)).parameters * 2 * 7 / 8
    three, one = sent(job(zero=3, engine=Engine(persistence=0))), sent(job(zero=1))
    assert three["weights gathered"].bytes == pytest.approx(8 * 2 * everything)  # 8 micro-steps
    assert one["new weights gathered"].bytes == pytest.approx(everything)
    assert one["gradients reduced"].bytes == pytest.approx(2 * everything)


def test_a_frozen_base_sends_next_to_nothing_under_zero_1():
    assert sum(each.bytes for each in traffic.of(job(zero=1, trained=FROZEN))) < 0.1e9


@pytest.mark.parametrize(
    ("layout", "link"),
    [
        ({"gpus": 8}, "node"),
        ({"gpus": 16}, "network"),
        ({"gpus": 16, "tensor": 8}, "network"),
        ({"gpus": 8, "tensor": 8}, None),
    ],
)
def test_which_link_gradients_take(layout, link):
    found = sent(job(zero=1, **layout)).get("gradients reduced")
    assert (found.link if found else None) == link


def test_a_node_sends_through_all_its_adapters_at_once():
    """16 GPUs of 50 GB/s each: 400 GB/s to the other node; with tensor parallelism 8 each has its own 50."""
    whole, split = (sent(job(zero=1, gpus=16, **each))["gradients reduced"] for each in ({}, {"tensor": 8}))
    assert whole.bytes / whole.seconds == pytest.approx(0.8 * 400e9, rel=0.05)
    assert split.bytes / split.seconds == pytest.approx(0.8 * 50e9, rel=0.05)


def test_many_gpus_pay_for_their_number():
    """The same bytes take longer over more hops."""
    few, many = (sent(job(gpus=gpus, global_batch=1024))["weights gathered"] for gpus in (64, 1024))
    assert many.seconds / (many.bytes / few.bytes) > few.seconds / 16 * 1.2


def test_tensor_parallelism_gathers_and_adds_up_hidden_states():
    """13B by 8: twice each in a block, forward, again and backward, and around embedding and head; nothing else."""
    found = sent(job("rope", model="llama2-13b", tensor=8, zero=1, checkpoint_layers=1, global_batch=1))
    hidden = 8192 * 5120 * 2 * 7 / 8
    assert found["hidden states gathered, added up"].bytes == pytest.approx((40 * 3 * 4 + 4) * hidden)
    norms = 2 * (81 * 5120) * 2 * 7 / 8
    assert found["gradients of whole weights"].bytes == pytest.approx(norms) and len(found) == 2


def test_tensor_parallelism_exchanges_position_states():
    """Of an eighth of the tokens, the state of all heads there and what became of it back; the first block has none."""
    found = sent(job(model="llama2-13b", tensor=8, zero=1, checkpoint_layers=1, global_batch=1))
    assert found["position states exchanged"].bytes == pytest.approx(39 * 3 * 2 * 8192 / 8 * 5120 * 2 * 7 / 8)


def test_a_second_copy_of_the_weights_keeps_the_backward_within_a_node():
    """ZeRO++: hpZ; with qwZ half the bytes, with qgZ a quarter (Wang et al. 2023, arXiv:2306.10209, Table 1)."""
    plain = sent(job(gpus=64, engine=Engine(persistence=0)))
    found = sent(job(gpus=64, engine=Engine(persistence=0, secondary=8)))
    near = found["weights gathered from the second copy"]
    assert near.link == "node" and found["weights gathered"].bytes == plain["weights gathered"].bytes / 2
    assert near.bytes == pytest.approx(job().parameters * 2 * 7 / 8)
    small = sent(job(gpus=64, engine=Engine(persistence=0, quantised_weights=True, quantised_gradients=True)))
    assert small["weights gathered"].bytes == plain["weights gathered"].bytes / 2
    assert small["gradients reduced"].bytes == plain["gradients reduced"].bytes / 4


def test_a_disk_is_slower_than_the_hosts_memory():
    near, far = (sent(job(offload_weights=each))["weights from the host"].seconds for each in ("cpu", "nvme"))
    assert far > 10 * near


def test_one_gpu_talks_to_nobody():
    assert traffic.of(job(gpus=1, zero=3)) == []
