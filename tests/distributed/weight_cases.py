"""What the ranks compute for the tests of weights that are no numbers."""

import os
from collections.abc import Sequence

import deepspeed
import torch
from torch import nn

from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import UserError
from tape_ds.training.finite_weights import require_finite_weights


def refusal(
    damaged: Sequence[tuple[str, float]], sharded: bool, only_rank: int | None = None
) -> str | None:
    """Return what is refused of a model of two maps, each with one number of ``damaged`` in its last column.

    Args:
        sharded: whether its parameters are partitioned, as under ZeRO-3 while they are loaded.
        only_rank: whose copy is damaged; None: every rank's.
    """
    settings = {
        "train_batch_size": int(os.environ["WORLD_SIZE"]),
        "zero_optimization": {"stage": 3},
    }
    model = nn.ModuleDict({"first": nn.Linear(7, 5), "second": nn.Linear(5, 3)})
    parameters = dict(model.named_parameters())
    rank = torch.distributed.get_rank()
    for name, number in damaged:
        if only_rank in (None, rank):
            parameters[name].data[-1].fill_(number)
    if sharded:
        deepspeed.zero.Init(module=model, config_dict_or_path=settings, dtype=torch.float32)
        assert all(parameter.numel() == 0 for parameter in model.parameters())
    try:
        require_finite_weights(model, "model", "base", RankSync())
    except UserError as error:
        return error.problems[0].wrong
    finally:
        deepspeed.zero.partition_parameters.shutdown_init_context()
    return None
