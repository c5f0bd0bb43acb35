"""Engines that cannot take shards of others. That they continue: ``tests/integration/test_resharding.py``."""

from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from tape_ds.checkpoint.resharding import load_engine
from tape_ds.errors import UserError
from tests.checkpoint.engine_files import example_groups, seal, write_engine


def engine(nvme=False, round_robin=False, kind=DeepSpeedZeroOptimizer):
    """As much of one as is looked at before anything is changed."""
    zero = object.__new__(kind)
    if kind is not object:
        zero.round_robin_gradients = round_robin
    return SimpleNamespace(
        optimizer=zero,
        zero_nvme_offload_optimizer=lambda: nvme,
        checkpoint_mp_rank=0,
        module=torch.nn.Linear(2, 2),
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (engine(kind=object), r"optimizer \(object\)"),
        (engine(nvme=True), "offload to NVMe"),
        (engine(round_robin=True), "round_robin_gradients"),
        (engine(), "has trained other parameters"),
    ],
)
def test_an_engine_that_cannot_take_them_is_refused(tmp_path, made, said):
    write_engine(tmp_path / "checkpoint-7" / "global_step7", example_groups(), 2, 2)
    with pytest.raises(
        UserError, match=f"(?s){said}.*start 2 processes at ZeRO stage 2"
    ) as refused:
        load_engine(made, seal(tmp_path / "checkpoint-7", 2, 2), 7, processes=1, stage=2)
    assert refused.value.on_one_rank  # a file may be missing for one rank alone
