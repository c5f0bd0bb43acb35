"""Memory by part against sums done by hand."""

import pytest

from tape_ds.distributed.layout import Engine
from tape_ds.planning import activations, memory
from tape_ds.planning.job import possible
from tests.planning.helpers import FROZEN, job

BIG = Engine(persistence=0)


def at(moment, **changes):
    found = memory.estimate(job(engine=BIG, **changes), reserve=False)
    return next(each for each in found.moments if each.moment == moment)


def test_zero_shards_one_thing_after_another():
    """Rajbhandari et al. 2020, Section 3: 2 P weights, 2 P gradients, 12 P of the optimizer, over 8 GPUs."""
    parameters = job().parameters
    found = [at("end of the backward", zero=stage) for stage in (1, 2, 3)]
    assert [each.optimizer for each in found] == [12 * parameters / 8] * 3
    assert [each.gradients for each in found] == [
        2 * parameters,
        2 * parameters / 8,
        2 * parameters / 8,
    ]
    assert [each.weights for each in found] == [2 * parameters, 2 * parameters, 2 * parameters / 8]


def test_without_an_engine_weights_are_fp32_and_their_own_masters():
    found = at("optimizer step", zero=None)
    assert found.weights == 4 * job().parameters and found.optimizer == 8 * job().parameters


def test_an_untouched_copy_is_one_model_s_weights_in_every_process():
    """Of the base: without the position updates that are trained."""
    for stage in (1, 2):
        more = at("loss", zero=stage, distilled=True).weights - at("loss", zero=stage).weights
        assert more == 2 * job("rope").parameters
    assert not possible(job(zero=3, distilled=True)) and possible(job(zero=2, distilled=True))


def test_a_checkpointed_block_keeps_its_hidden_and_position_state():
    """67 MB each at 7B and 8,192 tokens; the state of all layers but the last."""
    found = activations.count(job(checkpoint_layers=1))
    assert found.checkpoints == 32 * 8192 * 4096 * 2 and found.states == 31 * 8192 * 4096 * 2
    assert activations.count(job("rope", checkpoint_layers=1)).states == 0
    tiled = activations.count(job(checkpoint_layers=1, mlp_tiles=8))
    assert tiled.recomputed + tiled.working < 0.65 * (found.recomputed + found.working)


def test_a_frozen_base_keeps_inputs_of_linear_maps_under_zero_3_alone():
    """The linear map that it puts in place of torch's saves its input, whatever is trained."""
    inputs = {"input of q, k, v", "input of o", "input of gate and up", "input of down"}
    one, three = (
        {each.name for each in activations.inside(job(trained=FROZEN, zero=stage))}
        for stage in (1, 3)
    )
    assert {"q and k as rotated", "gate, up"} <= one and not inputs & one and inputs <= three


def test_offload_moves_all_but_the_last_blocks_inputs():
    here, there = (
        activations.count(job(checkpoint_layers=1, offload_checkpoints=each))
        for each in (False, True)
    )
    moved = 31 * 8192 * (4096 + 4096) * 2
    assert (
        there.offloaded
        == moved
        == here.checkpoints + here.states - there.checkpoints - there.states
    )
    assert memory.estimate(job(checkpoint_layers=1, offload_checkpoints=True)).host == moved


@pytest.mark.parametrize(
    ("encoding", "bytes_"), [("rope", 131_720), ("tape", 181_256), ("pope", 189_064)]
)
def test_what_a_block_of_7b_keeps_of_a_token(encoding, bytes_):
    """Summed by hand: 4,096 columns, 11,008 inside, 32 heads, 128 of the gate; all trained, fused norms, bf16.

    RoPE: norms 2 x 8,196; input of q, k, v and of gate and up 2 x 8,192; q, k, v and output 4 x 8,192; sums 128; gate,
    up and input of down 3 x 22,016. TAPE beside it: q and k before, the state beside the value; what became of it,
    input of o, output of the feed-forward, gate 256, sums 128. PoPE beside RoPE: q and k before, and twice as
    wide, value and output as wide as they, input of o.
    """
    assert sum(each.bytes for each in activations.inside(job(encoding, zero=2))) == bytes_


def test_what_lies_on_a_disk_is_not_in_the_hosts_memory():
    asked = job(model="llama2-70b", offload_optimizer="nvme", offload_weights="nvme", engine=BIG)
    found = memory.estimate(asked)
    assert found.host == 0 and found.nvme == 18 * asked.parameters / 8


def test_a_second_copy_of_the_weights_takes_its_share():
    plain, twice = (
        memory.estimate(job(world=64, engine=Engine(secondary=each))).peak.weights
        for each in (1, 8)
    )
    assert twice - plain == job().parameters * 2 / 8


def test_optimizer_offload_moves_masters_moments_and_fp32_gradients():
    found = memory.estimate(job(zero=2, offload_optimizer="cpu"))
    assert found.peak.optimizer == 0 and found.host == 16 * job().parameters / 8


def test_buckets_double_where_communication_overlaps():
    one, two = (at("loss", zero=2), at("loss", zero=1))
    assert one.buckets == two.buckets == 2 * 200_000_000 * 2
    apart = memory.estimate(job(zero=2, engine=Engine(overlap=False)), reserve=False)
    assert apart.peak.buckets == 200_000_000 * 2


def test_four_bits_shrink_the_blocks_alone():
    whole, packed = (
        at("loss", zero=1, trained=FROZEN),
        at("loss", zero=1, trained=FROZEN, quantised=True),
    )
    linears = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert whole.weights - packed.weights == pytest.approx(linears * (2 - 4.127 / 8))


def test_logits_are_those_of_one_chunk():
    """1,024 tokens of 32,000 entries: in bf16 and fp32, two copies of what the head reads, and the fp32 sum of its
    gradient where it is trained."""
    chunk = 1024 * (32_000 * 6 + 2 * 4096 * 2)
    assert activations.count(job(trained=FROZEN)).logits == chunk
    assert activations.count(job()).logits == chunk + 32_000 * 4096 * 4


def test_a_checkpoint_on_disk_holds_what_is_trained():
    """Two 16-bit copies, one for the engine and one to be loaded by itself, and 12 bytes of the optimizer."""
    asked = job(trained=FROZEN)
    assert memory.estimate(asked).checkpoint == 16 * asked.trained_parameters
