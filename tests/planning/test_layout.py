"""Who shares what, and how it is typed."""

from dataclasses import replace

from tape_ds.planning.layout import PlannedLayout


def test_ranks_that_read_and_ranks_that_shard():
    """Sequence parallelism shares sequences, and ZeRO shards over its ranks all the same; tensor parallelism takes
    them."""
    layout = PlannedLayout(gpus=64, tensor=2, sequence=4)
    assert layout.replicas == 8 and layout.shards == 32


def test_each_stage_shards_one_thing_more():
    assert [PlannedLayout(gpus=8, zero=2).shared(stage) for stage in (1, 2, 3)] == [8, 8, 1]
    assert PlannedLayout(gpus=8, zero=None).shared(1) == 1


def test_a_layout_is_typed_as_what_differs():
    layout = PlannedLayout(gpus=8, zero=2, tensor=2, checkpoint_layers="selective", offload_optimizer="cpu")
    own = "--deepspeed zero2_offload --per_device_train_batch_size 1 --tensor_parallel_size 2 "
    assert layout.command_line() == own + "--activation_checkpointing true --checkpoint_layers selective"
    plain = replace(layout, tensor=1, checkpoint_layers=None, offload_optimizer="none")
    assert plain.command_line(layout).endswith(
        "--tensor_parallel_size 1 --activation_checkpointing false --checkpoint_layers 1"
    )
    assert plain.changes(layout) == 3 and layout.changes(layout) == 0
    assert "--deepspeed null" in PlannedLayout(zero=None).command_line()
