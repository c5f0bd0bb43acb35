"""Who shares what."""

from tape_ds.planning.layout import Layout


def test_ranks_that_read_and_ranks_that_shard():
    """Sequence parallelism shares rows, and ZeRO shards over its ranks all the same; tensor parallelism takes them."""
    layout = Layout(gpus=64, tensor=2, sequence=4)
    assert layout.replicas == 8 and layout.shards == 32


def test_each_stage_shards_one_thing_more():
    assert [Layout(gpus=8, zero=2).shared(stage) for stage in (1, 2, 3)] == [8, 8, 1]
    assert Layout(gpus=8, zero=None).shared(1) == 1


def test_a_name_says_every_choice():
    layout = Layout(
        gpus=8, zero=3, tensor=2, sequence=2, checkpoint_layers=3, offload_checkpoints=True, offload_optimizer="cpu"
    )
    assert layout.name() == (
        "ZeRO-3, tensor 2, sequence 2, checkpointing 1 of 3 layers, checkpoints offloaded, optimizer offloaded, "
        "micro-batch 1"
    )
    assert Layout(zero=None).name() == "no engine, no checkpointing, micro-batch 1"
